"""A task of one's own: its YAML file read as plain data, and templates that can reach nothing.

The harness lets such a file name Python functions, metrics that are scripts, other files, and
templates that climb from a text to the whole of Python. Nothing of that is taken: a file that came
with data from somewhere is data, too. It does not know how questions are asked. Next:
`questions.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lm_eval.api.metrics  # fills the registry below
import lm_eval.utils
import yaml
from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment
from lm_eval.api.registry import AGGREGATION_REGISTRY, metric_registry

from laco import hub
from laco.errors import CalibrationError, RecipeError
from laco.reading import Malformed, short, text_of

FIELDS = frozenset(
    {
        *("task", "task_alias", "tag", "metadata", "description", "num_fewshot", "output_type"),
        *("dataset_path", "dataset_name", "dataset_kwargs"),
        *("training_split", "validation_split", "test_split", "fewshot_split"),
        *("doc_to_text", "doc_to_target", "doc_to_choice", "gen_prefix"),
        *("target_delimiter", "fewshot_delimiter", "metric_list", "generation_kwargs"),
        *("filter_list", "repeats", "should_decontaminate", "doc_to_decontamination_query"),
    }
)
TEMPLATES = ("doc_to_text", "doc_to_target", "doc_to_choice", "gen_prefix", "description")
DATA = ("json", "csv", "parquet", "text", "arrow")  # read as data; there are kinds that run code
METRIC = frozenset({"metric", "aggregation", "higher_is_better"})
SETTINGS = (str, int, float, bool, type(None), list)  # of a metric
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C it is quick and stops when too deep
MOST_LOOPS = 2
MOST_STEPS = 1000  # of a loop over numbers
MOST_REPEATED = 100_000  # characters or items that a template may make of one by `*`


class Templates(SandboxedEnvironment):
    """Templates that reach only what they are given, and end."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """A product, if it is a small one; no powers."""
        sizes = [one if isinstance(one, int | float) else len(one) for one in (left, right)]
        if operator == "**" or abs(sizes[0] * sizes[1]) > MOST_REPEATED:
            raise SecurityError(f"a template may not make so much with {operator}")
        return super().call_binop(context, operator, left, right)


def sandbox() -> None:
    """Have the harness fill in every template in a sandbox; its own templates need no more."""
    stock = lm_eval.utils.env
    if isinstance(stock, Templates):
        return
    safe = Templates(
        loader=stock.loader,
        undefined=stock.undefined,
        keep_trailing_newline=stock.keep_trailing_newline,
    )
    safe.filters.update(stock.filters)
    safe.globals["range"] = _few
    lm_eval.utils.env = safe


def read(file: Path) -> dict[str, Any]:
    """A task's YAML file as the harness's config; `data_files` count from its folder.

    Raises `RecipeError` for what is no such file, and for all that is not plain data.
    """
    if not file.is_file():
        raise RecipeError(f"{short(str(file))} does not exist; give a task's YAML file.")
    config = _plain(file)
    unknown = sorted(str(name) for name in set(config) - FIELDS)
    if unknown:
        raise RecipeError(
            f"{file} has {short(unknown[0])!r}, which a task of one's own may not have; there are "
            f"{', '.join(sorted(FIELDS))}."
        )
    if not isinstance(config.get("task"), str):
        raise RecipeError(f"{file} names no `task`; give it a name.")
    for name in TEMPLATES:
        _check_template(file, name, config.get(name))
    _check_metrics(file, config.get("metric_list"))
    return config | _data(file, config)


def _plain(file: Path) -> dict[str, Any]:
    try:
        text = text_of(file)
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, LOADER)):
            raise Malformed("uses aliases, which may stand for more than any memory holds")
        config = yaml.load(text, LOADER)  # nosec B506
    except Malformed as error:
        raise RecipeError(f"{file} cannot be read as a task: it {error}.") from None
    except yaml.constructor.ConstructorError as error:
        raise RecipeError(
            f"{file} names Python functions, which are not run ({short(str(error.problem))}); use "
            "templates."
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = short(hub.first_line(error), 120)
        raise RecipeError(f"{file} cannot be read as a task ({reason}).") from None
    if not isinstance(config, dict):
        raise RecipeError(f"{file} cannot be read as a task (it has no fields).")
    return config


def _check_template(file: Path, name: str, template: Any) -> None:
    """Raise `RecipeError` for a template that is broken, or that may take for ever."""
    for text in template if isinstance(template, list) else [template]:
        if not isinstance(text, str):
            continue
        try:
            loops = list(lm_eval.utils.env.parse(text).find_all(nodes.For))
        except (TemplateError, RecursionError) as error:
            reason = short(hub.first_line(error))
            raise RecipeError(f"{file}: the template {name} is broken ({reason}).") from None
        if len(loops) > MOST_LOOPS:
            raise RecipeError(f"{file}: the template {name} has more than {MOST_LOOPS} loops.")


def _check_metrics(file: Path, metrics: Any) -> None:
    """Raise `RecipeError` for a metric that the harness would look for elsewhere, as a script."""
    for metric in metrics if isinstance(metrics, list) else [] if metrics is None else [None]:
        if not isinstance(metric, dict) or str(metric.get("metric")) not in metric_registry:
            known = ", ".join(sorted(metric_registry.keys()))
            raise RecipeError(
                f"{file} asks for a metric that the harness does not have; there are {known}."
            )
        if str(metric.get("aggregation", "mean")) not in AGGREGATION_REGISTRY:
            raise RecipeError(f"{file} asks for an aggregation that the harness does not have.")
        if metric.get("hf_evaluate") or not all(isinstance(v, SETTINGS) for v in metric.values()):
            raise RecipeError(
                f"{file} asks for a metric from elsewhere, which would be code; take one of the "
                "harness's own."
            )


def _data(file: Path, config: dict[str, Any]) -> dict[str, Any]:
    """`dataset_kwargs` with the places of the data, which lie beside the file, or `RecipeError`."""
    kind = config.get("dataset_path")
    if not isinstance(kind, str) or (kind not in DATA and not _is_on_hub(kind)):
        raise RecipeError(
            f"{file}: dataset_path is one of {', '.join(DATA)}, or org/name on the hub; nothing "
            "else is read."
        )
    options = config.get("dataset_kwargs") or {}
    if not isinstance(options, dict) or set(options) - {"data_files"}:
        raise RecipeError(f"{file}: dataset_kwargs holds `data_files` and nothing else.")
    if "data_files" not in options:
        return {}
    files = options["data_files"]
    found = {
        split: [_beside(file, name) for name in (names if isinstance(names, list) else [names])]
        for split, names in (files if isinstance(files, dict) else {"train": files}).items()
    }
    return {"dataset_kwargs": {"data_files": found}}


def _is_on_hub(name: str) -> bool:
    return "/" in name and hub.is_name(name) and not Path(name).exists()


def _beside(file: Path, name: Any) -> str:
    """A data file's whole path, which lies in the task's folder or below."""
    home = file.resolve().parent
    try:
        place = (home / name).resolve()
    except (TypeError, ValueError, OSError, RuntimeError):
        place = Path("/")
    if not place.is_relative_to(home) or Path(name).is_absolute():
        raise RecipeError(f"{file}: data_files lie in the task's own folder, by names from there.")
    if not place.is_file():
        raise CalibrationError(f"{file}: there is no {short(name)!r} beside it.")
    return str(place)


def _few(*bounds: int) -> range:
    steps = range(*bounds)
    if len(steps) > MOST_STEPS:
        raise SecurityError(f"a template may not loop more than {MOST_STEPS} times")
    return steps
