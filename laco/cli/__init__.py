"""The command line; `COMMANDS` lists what there is.

Each command turns words into specs (`arguments.py`), has the engine, the store or the job runner
do the work, and prints what came out (`terminal.py`). Imports stay inside the functions, so that
`--help` is quick. Next: `work.py`.
"""

from __future__ import annotations

import sys

import typer

from laco.cli import jobs, look, results, shares, sweeping, trial, work
from laco.cli.terminal import speak

HELP = """Compress language models by layers.

\b
Three examples:
  laco similarity bundled:smollm2-135m
  laco run laco-default --model bundled:smollm2-135m --evaluate perplexity
  laco demo

A MODEL is bundled:smollm2-135m, a hub id (org/name or org/name@revision), a folder, a .gguf
file, or the key of a result. A CORPUS is bundled:wikipedia, bundled:wikihow, bundled:pydoc,
wikitext2, c4, ptb or file:PATH; @calibration or @heldout picks a part. A RECIPE is a JSON file
or the name of a preset in recipes/. Status 0: done, 1: an error, 2: wrong usage.
"""

COMMANDS = (
    work.demo,
    look.doctor,
    look.inspect,
    look.similarity,
    look.whatif,
    trial.try_,
    work.run,
    work.evaluate,
    work.export,
    results.compare,
    results.runs,
    results.show,
    results.annotate,
    results.diff,
    sweeping.sweep,
    sweeping.sweeps,
    jobs.submit,
    jobs.jobs,
    jobs.logs,
    jobs.cancel,
    jobs.retry,
    jobs.devices,
    jobs.schedule,
    jobs.app,
)

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in COMMANDS:
    app.command()(command)
for command in (shares.push, shares.pull):
    results.upkeep.command()(command)
app.add_typer(results.upkeep, name="store")


def main() -> None:
    """The `laco` command."""
    sys.exit(speak(app))
