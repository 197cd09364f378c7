"""Chat templates of many kinds, and conversations whose answers were counted by hand.

The tokenizer has a token a byte, and one a special token, so a count by hand is that of characters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|user|>", "<|assistant|>",
    "<|tool|>", "<|end|>", "<|eot|>", "<|eom|>",
)  # fmt: skip

CHATML = """\
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

# The system's message stands in the first turn of the user; there is no generation prompt.
INST = """\
{%- if messages[0].role == 'system' %}
{%- set system = '<<SYS>>' + messages[0].content + '<</SYS>>' %}{% set turns = messages[1:] %}
{%- else %}{% set system = '' %}{% set turns = messages %}{% endif %}
{%- for m in turns %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate user/assistant') }}{% endif %}
{%- if m.role == 'user' %}
{{- '<s>[INST] ' + (system if loop.first else '') + m.content.strip() + ' [/INST]' }}
{%- else %}{{- ' ' + m.content.strip() + ' </s>' }}{% endif %}
{%- endfor %}"""

# Messages of one role after the other become one turn.
MERGING = """\
{%- set ns = namespace(role='') %}
{%- for m in messages %}
{%- if m.role == ns.role %}{{- '\\n\\n' }}
{%- else %}{{- '<|end|>' if ns.role else '' }}{{- '<|' + m.role + '|>' }}{% endif %}
{{- m.content }}{% set ns.role = m.role %}
{%- endfor %}{{- '<|end|>' }}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""

MARKED = """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|assistant|>' }}{% generation %}{{- m.content + '<|end|>' }}{% endgeneration %}
{%- else %}{{- '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""

# Thinking is shown in the last turn alone, where an answer without any gets an empty one.
THINKING = """\
{%- for m in messages %}
{%- set parts = m.content.split('</think>') %}
{%- if m.role != 'assistant' or not loop.last %}
{{- '<|im_start|>' + m.role + '\\n' + parts[-1] + '<|im_end|>\\n' }}
{%- else %}{% set thought = parts[0].split('<think>')[-1] if parts|length > 1 else '' %}
{{- '<|im_start|>assistant\\n<think>' + thought + '</think>' + parts[-1] + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

# A turn with calls ends in another token than one that is over.
TOOLS = """\
{%- if tools %}{{- '<|tool|>' + tools|tojson + '<|end|>' }}{% endif %}
{%- for m in messages %}
{{- '<|' + m.role + '|>' + m.content }}
{%- for call in m.tool_calls or [] %}
{{- '[' + call.function.name + ' ' + call.function.arguments|tojson + ']' }}{% endfor %}
{{- '<|eom|>' if m.tool_calls else '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""

# Takes a tool's message only after a call, calls only with arguments as text, and no other order;
# a call has special tokens in its middle. There is no generation prompt.
STRICT = """\
{%- set ns = namespace(calls=false) %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}
{%- for call in m.tool_calls %}
{{- '<|tool|>' + call.function.name + call.function.arguments + '<|eom|>' }}{% endfor %}
{{- '</s>' }}{% set ns.calls = true %}
{%- elif m.role == 'assistant' %}{{- m.content + '</s>' }}{% set ns.calls = false %}
{%- elif m.role == 'tool' %}
{%- if not ns.calls %}{{- raise_exception('no call before it') }}{% endif %}
{{- '<|tool|>' + m.content + '<|end|>' }}
{%- else %}{{- '<s>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}"""

# Two tokens end a turn; the results of calls stand in the turn that calls.
PAIR = """\
{%- for m in messages if m.role != 'tool' %}
{{- '<|user|>' if m.role == 'user' else '<|assistant|>' }}
{%- if m.tool_calls %}{{- '[' + m.tool_calls[0].function.name + ']<|tool|>' }}
{%- for r in messages if r.role == 'tool' %}{{- r.content + '<|tool|>' }}{% endfor %}
{%- endif %}
{{- m.content + '<|end|><|eot|>' if m.content or not m.tool_calls else '' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""

# No special tokens at all.
PLAIN = """\
{%- for m in messages %}{{- m.role.upper() + ': ' + m.content + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- 'ASSISTANT:' }}{% endif %}"""


class Case(NamedTuple):
    """A conversation; the texts that bear loss; how many tokens they are; how many have no end."""

    template: str
    row: dict[str, Any]
    answers: list[str]
    tokens: int
    endless: int = 0


def turns(*turns: str, **more: Any) -> dict[str, Any]:
    """A row of `role: content` strings."""
    pairs = [turn.split(": ", 1) for turn in turns]
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return {"messages": [{"role": names[who], "content": said} for who, said in pairs], **more}


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x":1,"y":2}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}

CASES = {
    "one turn": Case(CHATML, turns("u: hi", "a: hello"), ["hello<|im_end|>"], 6),
    "system and several turns": Case(
        CHATML, turns("s: Be brief.", "u: 2+2?", "a: 4", "u: 3+3?", "a: it is six"),
        ["4<|im_end|>", "it is six<|im_end|>"], 12,
    ),
    "an empty answer, and a turn that nobody answered": Case(
        CHATML, turns("u: hi", "a: ", "u: hello?", "a: ok", "u: so"),
        ["<|im_end|>", "ok<|im_end|>"], 4,
    ),
    "a system's message in the user's turn": Case(
        INST, turns("s: Be kind.", "u: hi ", "a:  hello ", "u: bye", "a: ciao"),
        [" hello </s>", " ciao </s>"], 15,
    ),
    "turns merged": Case(
        MERGING, turns("u: a", "u: b", "a: c", "a: d", "u: e", "a: f"),
        ["c\n\nd<|end|>", "f<|end|>"], 7, 1,
    ),
    "generation blocks": Case(
        MARKED, turns("s: x", "u: <|", "a: one", "u: two", "a: three"),
        ["one<|end|>", "three<|end|>"], 10,
    ),
    "thinking of earlier turns stripped": Case(
        THINKING,
        turns("u: q", "a: <think>r</think>yes", "u: q", "a: <think>s</think>no"),
        ["yes<|im_end|>", "<think>s</think>no<|im_end|>"], 23,
    ),
    "thinking that the template adds": Case(
        THINKING, turns("u: q", "a: yes", "u: q", "a: no"),
        ["yes<|im_end|>", "<think></think>no<|im_end|>"], 22,
    ),
    "tool calls": Case(
        TOOLS,
        {
            "messages": [
                {"role": "user", "content": "1+2, 1+2?"},
                {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
                {"role": "tool", "content": "3", "tool_call_id": "c1"},
                {"role": "tool", "content": "3", "tool_call_id": "c1"},
                {"role": "assistant", "content": "three"},
            ],
            "tools": [TOOL],
        },
        ['[add {"x": 1, "y": 2}][add {"x": 1, "y": 2}]<|eom|>', "three<|eot|>"], 51,
    ),
    "ShareGPT, a call, characters of several bytes": Case(
        TOOLS,
        {
            "system": "short",
            "conversations": [
                {"from": "human", "value": "東京?"},
                {"from": "function_call", "value": '{"name": "at", "arguments": {}}'},
                {"from": "observation", "value": "[assistant]"},
                {"from": "gpt", "value": "日本🗾"},
            ],
        },
        ["[at {}]<|eom|>", "日本🗾<|eot|>"], 19,
    ),
    "calls that a template is strict about": Case(
        STRICT,
        {
            "messages": [
                {"role": "user", "content": "1+2?"},
                {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
                {"role": "tool", "content": "3", "tool_call_id": "c1"},
                {"role": "assistant", "content": "three"},
            ]
        },
        ['<|tool|>add{"x": 1, "y": 2}<|eom|>' * 2 + "</s>", "three</s>"], 49,
    ),
    "two tokens that end a turn": Case(
        PAIR, turns("u: a", "a: b", "u: c", "a: d"), ["b<|end|><|eot|>", "d<|end|><|eot|>"], 6
    ),
    "results of a call in its turn": Case(
        PAIR,
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "content": "3"},
                {"role": "assistant", "content": "b"},
            ]
        },
        ["[add]<|tool|>", "b<|end|><|eot|>"], 9,
    ),
    "an answer without weight": Case(
        CHATML,
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": "wrong", "weight": 0},
                {"role": "user", "content": "no"},
                {"role": "assistant", "content": "right", "weight": 1},
            ]
        },
        ["right<|im_end|>"], 6,
    ),
    "no special tokens": Case(PLAIN, turns("u: ASSISTANT: x", "a: y", "a: z"), [" y", " z"], 4, 2),
}  # fmt: skip


def write_model(
    folder: Path, template: str | None, merges: tuple[tuple[str, str], ...] = ()
) -> Path:
    """A model folder without weights: a tokenizer, its template, and a vocabulary size."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*SPECIAL, *letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(
        models.BPE(dict(zip(names, range(len(names)), strict=True)), list(merges))
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(names)}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
