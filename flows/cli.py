"""`megaline`: the commands. Prefect and torch are loaded only by `run`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from cyclopts import App, CycloptsError, Parameter

from flows import console
from flows.arguments import Json, Output, Overrides, Recipe, Root, Stage, StageName
from flows.clean_page import clean_page
from flows.datasets import merge, tokenize
from flows.explain import explain
from flows.show_tokens import show_tokens
from flows.tokenize_chat import tokenize_chat
from tasks.core.errors import ConfigError, PipelineError, refused
from tasks.core.progress import clear

app = App(
    name="megaline",
    help="From raw text to a served language model on Megatron-Core.",
    help_epilogue="Exit codes: 0 done; 1 a proof or a gate does not hold; 2 bad input; "
    "3 failed, may be retried.",
    help_format="plaintext",
    version_flags=[],
    print_error=False,
    exit_on_error=False,
    result_action="return_value",
)


@app.command
def run(
    recipe: Recipe,
    /,
    *overrides: Overrides,
    until: Annotated[StageName | None, Parameter(help="The last stage wanted")] = None,
    force: Annotated[
        list[StageName] | None, Parameter(negative="", help="Build this stage anew (repeatable)")
    ] = None,
    root: Root = None,
    json: Json = False,
) -> int:
    """Run the line; stages that are sealed already are reused.

    For example:

    megaline run deploy/recipes/quickstart.yaml

    megaline run deploy/recipes/quickstart.yaml train.steps=7 --until train
    """
    from flows import reports
    from flows.config import load
    from flows.run import run as run_line

    console.tell_stages(sys.stderr if json else sys.stdout)
    rows = run_line(load(recipe, overrides), str(root) if root else None, until, force or [])
    failed = [row for row in rows if row["state"] == "Failed"]
    console.say({"stages": rows}, reports.summary(rows), json)
    for row in failed:
        print(f"megaline: {row['stage']} failed. {row['error']}", file=sys.stderr)
    return min((row["exit_code"] for row in failed), default=0)


@app.command
def plan(recipe: Recipe, /, *overrides: Overrides, root: Root = None, json: Json = False) -> int:
    """Show each stage's label and fingerprint, and whether it is sealed. No work is done.

    Where the tokens are sealed, also what training would take of each token dataset.

    For example:

    megaline plan deploy/recipes/quickstart.yaml

    megaline plan deploy/recipes/quickstart.yaml train.steps=7
    """
    from flows import preflight
    from flows.config import load
    from flows.line import plan as plan_line
    from tasks.core.store import Store

    store, config = Store(root), load(recipe, overrides)
    found = plan_line(config, store)
    rows = [
        {
            "stage": name,
            "label": planned.address.label,
            "fingerprint": planned.address.fingerprint,
            "state": "sealed" if planned.artifact else "to build",
            "path": str(store.path(planned.address)),
        }
        for name, planned in found.items()
    ]
    tokens = found["tokens"].artifact
    samples = preflight.samples_by_source(config, tokens, found) if tokens else []
    lines = console.plan_lines(rows, samples)
    console.say({"stages": rows, "samples": samples}, lines, json)
    return 0


@app.command
def why(
    recipe: Recipe,
    stage: Stage,
    /,
    *overrides: Overrides,
    root: Root = None,
    json: Json = False,
) -> int:
    """Say what differs between a planned stage and the nearest sealed output, field by field.

    For example:

    megaline why deploy/recipes/quickstart.yaml to_hf train.steps=7
    """
    from flows import lineage
    from flows.config import load
    from flows.line import plan as plan_line
    from tasks.core.store import Store

    store = Store(root)
    planned = plan_line(load(recipe, overrides), store)
    reason = lineage.why(store, planned, stage)
    state = "sealed" if planned[stage].artifact else "to build"
    nearest, differences = (reason.nearest, reason.differences) if reason else (None, [])
    document = {
        "stage": stage,
        "state": state,
        "fingerprint": planned[stage].address.fingerprint,
        "nearest": str(nearest) if nearest else None,
        "differences": differences,
    }
    console.say(document, console.why_lines(stage, state, nearest, differences), json)
    return 0


@app.command
def show(path: Output, /, *, json: Json = False) -> int:
    """Show the record of an output, its files and what it was made from.

    For example:

    megaline show .megaline/train/*/*
    """
    from flows import lineage

    folder, record = lineage.open_record(path)
    above = lineage.ancestors(folder, record)
    document = {
        "path": str(folder),
        "record": record.model_dump(mode="json"),
        "ancestors": {key: item and item.model_dump(mode="json") for key, item in above.items()},
    }
    console.say(document, console.record_lines(folder, record, above), json)
    return 0


@app.command
def verify(
    path: Output, /, *, deep: Annotated[bool, Parameter(negative="")] = False, json: Json = False
) -> int:
    """Hold an output against its record; exit code 1 where something does not match.

    For example:

    megaline verify .megaline/to_hf/*/* --deep

    Args:
        deep: hash every file again instead of looking at sizes only
    """
    from flows import lineage

    folder, record = lineage.open_record(path)
    wrong = lineage.mismatches(folder, record, deep)
    document = {"path": str(folder), "ok": not wrong, "deep": deep, "mismatches": wrong}
    console.say(document, console.verify_lines(folder, len(record.files), deep, wrong), json)
    return 1 if wrong else 0


@app.command
def report(path: Path, /, *, out: Path | None = None, json: Json = False) -> int:
    """Write one HTML page about an output and all that it was made from.

    The page holds its pictures and styles, and asks nothing of the network.
    Take the export for the whole line, or train for a training run.

    For example:

    megaline report .megaline/export/*/*

    megaline report .megaline/train/*/* --out training.html

    Args:
        path: a sealed output, as `megaline plan` shows it
        out: the page; report-FINGERPRINT.html in the current folder without it
    """
    from flows import page

    found = page.document(path)
    out = out or Path(f"report-{found['fingerprint']}.html")
    page.write(page.html(found), out)
    console.say({"out": str(out.absolute()), **found}, [str(out.absolute())], json)
    return 0


app.command(clean_page)
app.command(tokenize)
app.command(merge)
app.command(tokenize_chat)
app.command(show_tokens)
app.command(explain)


@app.command
def doctor(*, root: Root = None, json: Json = False) -> int:
    """Say what this machine can run, what it lacks for the rest, and how to get it.

    Libraries are imported in a process of their own. Credentials are only looked for by name:
    no value is read or shown, and nothing is asked over the network but `PREFECT_API_URL`.

    For example:

    megaline doctor

    megaline doctor --json
    """
    from flows import doctor as examination

    report = examination.examine(root)
    console.say(report, examination.lines(report), json)
    return 0


@app.command
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Your shell")], /
) -> int:
    """Print a script that completes `megaline` in a shell when Tab is pressed.

    For example:

    source <(megaline completion bash)

    megaline completion zsh > "${fpath[1]}/_megaline"

    megaline completion fish > ~/.config/fish/completions/megaline.fish
    """
    print(app.generate_completion(shell=shell))
    return 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command's entry: errors as one paragraph on standard error, and the exit code."""
    console.tell_warnings()
    try:
        code = _guarded(list(sys.argv[1:] if arguments is None else arguments))
    except BrokenPipeError:
        # The reader of our output left (`megaline show … | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _guarded(arguments: list[str]) -> int:
    try:
        try:
            code = app(arguments)
        except CycloptsError as error:
            raise ConfigError(
                " ".join(str(error).split()), where="the command line",
                expected="what `megaline --help` and `megaline COMMAND --help` show",
                got=" ".join(["megaline", *arguments]), fix="correct it and call again",
            ) from error  # fmt: skip
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except PipelineError as error:
        clear()
        print(f"megaline: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        raise
    except OSError as error:
        clear()
        print(f"megaline: {refused(error)}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    main()
