"""The zero-shot tasks that come with the offline bundle, and the sets of tasks that papers report.

Names are those of lm-evaluation-harness, whose prompt and metrics each task has. The data are the
real validation sets; where the harness's own task reads another split, a result's name says so. It
does not know how questions are read (`evaluate/questions.py`) or asked (`evaluate/zero_shot.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

MMLU = ("mmlu_stem", "mmlu_humanities", "mmlu_social_sciences", "mmlu_other")


@dataclass(frozen=True)
class Bundled:
    """A task of the bundle: its folder of data there, and the split that the harness's task reads.

    `main` is the metric that tables of papers show.
    """

    title: str
    questions: int
    folder: str
    stock_split: str = "validation"
    main: str = "acc"


BUNDLED = {
    "boolq": Bundled("BoolQ", 3270, "boolq/none"),
    "piqa": Bundled("PIQA", 1838, "piqa/plain_text", main="acc_norm"),
    "hellaswag": Bundled("HellaSwag", 10042, "hellaswag/none", main="acc_norm"),
    "winogrande": Bundled("WinoGrande", 1267, "winogrande/winogrande_xl"),
    "arc_easy": Bundled("ARC-Easy", 570, "ai2_arc/ARC-Easy", "test", "acc_norm"),
    "arc_challenge": Bundled("ARC-Challenge", 299, "ai2_arc/ARC-Challenge", "test", "acc_norm"),
    "openbookqa": Bundled("OpenBookQA", 500, "openbookqa/main", "test", "acc_norm"),
    "commonsense_qa": Bundled("CommonsenseQA", 1221, "tau/commonsense_qa/none"),
    "social_iqa": Bundled("SocialIQA", 1954, "social_i_qa/none"),
    "sciq": Bundled("SciQ", 1000, "sciq/none", "test", "acc_norm"),
    "copa": Bundled("COPA", 100, "super_glue/copa"),
    "rte": Bundled("RTE", 277, "glue/rte"),
    **{name: Bundled(name, 0, "hails/mmlu_no_train", "test") for name in MMLU},
}

SETS = {  # what is asked for by one name
    "mmlu": MMLU,
    "llm-pruner": (
        "boolq",
        "piqa",
        "hellaswag",
        "winogrande",
        "arc_easy",
        "arc_challenge",
        "openbookqa",
    ),
    "acl-2026": (
        "rte",
        "boolq",
        "hellaswag",
        "winogrande",
        "openbookqa",
        "piqa",
        "arc_easy",
        "arc_challenge",
    ),
    "slicegpt": ("piqa", "winogrande", "hellaswag", "arc_easy", "arc_challenge"),
    "laco": ("hellaswag", "piqa", "commonsense_qa", "boolq", *MMLU),
}


def expand(names: str) -> list[str]:
    """The tasks that `names`, with commas between them, stand for: sets are replaced by theirs."""
    found = [name.strip() for name in names.split(",") if name.strip()]
    return list(dict.fromkeys(task for name in found for task in SETS.get(name, (name,))))
