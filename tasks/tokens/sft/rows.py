"""A row of chat data as the messages that a chat template takes.

Two shapes are read: OpenAI's `messages` (`role`, `content`, `tool_calls`, `weight`) and ShareGPT's
`conversations` (`from`, `value`); either with `tools`, and ShareGPT's also with `system`.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
_SHAREGPT = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}


@dataclass(frozen=True)
class Conversation:
    """What a chat template is given.

    Attributes:
        id: the row's own, "" where it has none.
        messages: `role` and `content` (a string) each, and what else the row has; the arguments of
            tool calls are objects, as templates expect them.
        unweighted: places of the answers that shall bear no loss (`weight` 0).
        tools: JSON schemas, None where there are none.
    """

    id: str
    messages: list[Message]
    unweighted: frozenset[int]
    tools: list[dict[str, Any]] | None


def read(row: dict[str, Any]) -> Conversation:
    """The conversation of a row.

    Raises:
        ValueError: says in a few words why there is none.
    """
    messages = [_message(place, message) for place, message in enumerate(_messages(row))]
    weights = [message.pop("weight", 1) for message in messages]
    if any(weight not in (0, 1) for weight in weights):
        raise ValueError("a weight other than 0 and 1")
    unweighted = frozenset(place for place, weight in enumerate(weights) if not weight)
    answers = {place for place, message in enumerate(messages) if message["role"] == "assistant"}
    if not answers - unweighted:
        raise ValueError("no answer" if not answers else "no answer with a weight")
    return Conversation(str(row.get("id", "")), messages, unweighted, _tools(row.get("tools")))


def spelled(conversation: Conversation) -> Conversation | None:
    """The conversation with the arguments of its calls as JSON; None where it has no calls."""
    if not any("tool_calls" in message for message in conversation.messages):
        return None
    messages = [dict(message) for message in conversation.messages]
    for message in messages:
        if "tool_calls" in message:
            message["tool_calls"] = [_spelled(call) for call in message["tool_calls"]]
    return dataclasses.replace(conversation, messages=messages)


def _spelled(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _messages(row: dict[str, Any]) -> list[Any]:
    messages = row.get("messages")
    if messages is None and isinstance(row.get("conversations"), list):
        system = row.get("system")
        first = [{"role": "system", "content": system}] if system else []
        messages = first + [_from_sharegpt(turn) for turn in row["conversations"]]
    if not isinstance(messages, list) or not messages:
        raise ValueError("neither messages nor conversations")
    return messages


def _from_sharegpt(turn: Any) -> Message:
    if not isinstance(turn, dict) or "from" not in turn:
        raise ValueError("a turn without from and value")
    role = _SHAREGPT.get(str(turn["from"]))
    if role is None:
        raise ValueError(f"the unknown role {str(turn['from'])[:40]!r}")
    others = {key: value for key, value in turn.items() if key not in ("from", "value")}
    if turn["from"] != "function_call":
        return {**others, "role": role, "content": turn.get("value")}
    try:
        call = json.loads(turn["value"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError("a function_call that is no JSON") from None
    calls = call if isinstance(call, list) else [call]
    return {**others, "role": role, "tool_calls": [{"function": one} for one in calls]}


def _message(place: int, message: Any) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f"message {place} has no role")
    if message["role"] not in ROLES:
        raise ValueError(f"the unknown role {message['role'][:40]!r}")
    # Other APIs write null for what is not there; templates take it for a value.
    taken: Message = {key: value for key, value in message.items() if value is not None}
    taken["content"] = _content(place, taken.get("content"), taken["role"])
    if calls := taken.pop("tool_calls", None):
        if taken["role"] != "assistant" or not isinstance(calls, list):
            raise ValueError(f"the tool_calls of message {place} are no list of an assistant")
        taken["tool_calls"] = [_call(place, call) for call in calls]
    return taken


def _content(place: int, content: Any, role: str) -> str:
    if content is None and role == "assistant":
        return ""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) == len(parts):
            return "".join(texts)
    if not isinstance(content, str):
        raise ValueError(f"message {place} holds no text alone")
    return content


def _call(place: int, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"message {place} calls a tool without a name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        raise ValueError(f"message {place} calls a tool with arguments that are no JSON object")
    outer = {key: value for key, value in call.items() if key not in ("name", "arguments")}
    return {"type": "function", **outer, "function": {**function, "arguments": arguments}}


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except (ValueError, RecursionError):
            raise ValueError("tools that are no JSON") from None
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("tools that are no list of objects")
    return tools
