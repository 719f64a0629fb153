"""The house: who may import whom, what words are kept where, sizes, and README's tree."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINES = 350  # a file should stay below 300; this is where the build stops
PAGE_LINES = 110
HEAVY = {"torch", "transformers", "datasets", "lm_eval", "accelerate"}
DESCRIBING = [
    "errors",
    "context",
    "ranks",
    "spec",
    "steps",
    "recipe",
    "evaluations",
    "wording",
    "tasks",
    "statistics",
    "rows",
    "formats",
    "onefile",
    "columns",
    "commands",
    "report",
    "drawing",
    "presets",
    "prompts",
    "continued",
    "demo",
    "sweep",
]
KEEPING = [
    *("store", "listing", "index", "audit", "upkeep", "disk", "jobs", "queue", "schedule", "card"),
    *("expected", "machine", "capabilities", "ahead", "rhythms"),
    *("annotations", "removal", "lineage", "story", "chapters"),
    *("sweeps", "share", "sharing"),
    *("locks", "causes", "devices", "room", "access", "warm", "places", "programs"),
    *("shipped", "imports"),
]
METHODS = [
    "layers",
    "layouts",
    "walk",
    "head",
    "measures",
    "similarity",
    "changes",
    "candidates",
    "ranking",
    "collapse",
    "whatif",
    "merging",
    "depth",
    "depth_rules",
    "experts",
    "models",
    "checkpoint",
    "hub",
    "reading",
    "shards",
    "reference",
    "gguf_header",
    "corpora",
    "texts",
    "textfiles",
    "leaks",
    "memory",
    "speed",
    "lazy",
    "layerfiles",
    "prune",
    "ridge",
    "compensate",
    "restack",
    "rework",
    "streamed",
    "parallel",
    "adapters",
    "finetune",
    "evaluate",
    "writing",
    "export",
]
NAMES_DEVICES = {
    "laco/models.py",
    "laco/memory.py",
    "laco/schedule.py",
    "laco/worker.py",
    "laco/ranks.py",
}


def sources() -> list[Path]:
    folders = (ROOT / name for name in ("laco", "pages"))
    return sorted([ROOT / "app.py", *(path for folder in folders for path in folder.rglob("*.py"))])


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sources()}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def statements(node: ast.AST, nested: bool) -> Iterator[ast.AST]:
    """Every statement that runs on import; with `nested`, those inside functions too."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            continue
        if not nested and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield child
        yield from statements(child, nested)


@cache
def imported(module: str, nested: bool = False) -> frozenset[str]:
    """Full names of what a module imports: ours as modules, others as their top package."""
    found: set[str] = set()
    for node in statements(ast.parse(MODULES[module].read_text(encoding="utf-8")), nested):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} imports relatively"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            ours = inner & set(MODULES)
            found |= ours or {node.module}
    return frozenset(name if name in MODULES else name.split(".")[0] for name in found)


def reached(module: str) -> set[str]:
    """Everything that comes with importing a module."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            if name in MODULES:
                waiting += imported(name)
                waiting += [".".join(name.split(".")[:i]) for i in range(1, name.count(".") + 1)]
    return seen


def within(*packages: str) -> list[str]:
    return [
        name
        for name in MODULES
        if any(name == package or name.startswith(f"{package}.") for package in packages)
    ]


LIGHT = within("laco.cli", "laco.ui", "pages", "app", *(f"laco.{n}" for n in DESCRIBING + KEEPING))


@pytest.mark.parametrize("module", LIGHT)
def test_describing_keeping_and_showing_come_without_torch(module: str):
    assert not reached(module) & HEAVY


@pytest.mark.parametrize("module", within("laco.ui", "pages", "app"))
def test_pages_import_nothing_that_brings_torch_even_inside_functions(module: str):
    heavy = [name for name in imported(module, nested=True) if reached(name) & HEAVY]
    assert not heavy


@pytest.mark.parametrize("module", within("laco"))
def test_only_the_pages_and_their_package_import_streamlit(module: str):
    allowed = module in within("laco.ui")
    assert allowed or "streamlit" not in imported(module, nested=True)


@pytest.mark.parametrize("module", within(*(f"laco.{name}" for name in METHODS)))
def test_methods_know_nothing_of_store_jobs_engine_or_pages(module: str):
    above = within(
        "laco.ui",
        "laco.cli",
        *(f"laco.{n}" for n in ("store", "jobs", "queue", "engine", "worker")),
    )
    assert not imported(module, nested=True) & set(above)


VOCABULARY = within("laco.errors", "laco.spec", "laco.steps", "laco.recipe", "laco.evaluations")


@pytest.mark.parametrize("module", VOCABULARY)
def test_the_vocabulary_stands_on_itself(module: str):
    ours = {name for name in imported(module, nested=True) if name.startswith("laco")}
    assert ours <= set(VOCABULARY)


def test_imports_form_no_circle():
    graph = {
        name: {other for other in imported(name) if other in MODULES and other != "laco"}
        for name in MODULES
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


def test_every_module_of_laco_is_in_the_table_of_its_kind():
    top = {path.stem for path in (ROOT / "laco").iterdir() if path.suffix == ".py" or path.is_dir()}
    working = ("engine", "analyses", "worker", "warmed", "cli", "ui", "evaluate")
    known = {*DESCRIBING, *KEEPING, *METHODS, *working}
    assert top - {"__init__", "__main__", "__pycache__"} == known


def test_importing_what_pages_need_loads_no_torch():
    names = [
        name for name in ("laco.report", "laco.jobs", "laco.store", "laco.cli") if name in MODULES
    ]
    code = f"import sys, {', '.join(names)}; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_does_not_wait_for_pydantic():
    code = "import sys, laco.cli; print(sorted({'pydantic', 'pandas', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_kind_of_device_is_named_in_few_places():
    places = {
        str(path.relative_to(ROOT))
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.match(r"cuda\b", node.value)
    }
    assert places <= NAMES_DEVICES


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_open_with_a_docstring(path: Path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES
    assert path.name == "__init__.py" or ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("path", sorted((ROOT / "pages").glob("*.py")), ids=lambda path: path.name)
def test_a_page_reads_like_its_screen(path: Path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= PAGE_LINES


def test_packages_are_all_installed():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = {module_name(path) for path in (ROOT / "laco").rglob("__init__.py")}
    listed = re.search(r"^packages = \[(.*)\]", text, re.MULTILINE)
    assert listed
    assert set(re.findall(r'"([\w.]+)"', listed[1])) == packages


FOLDERS = (
    "pages/",
    "laco/",
    "shipped/",
    "places/",
    "steps/",
    "prune/",
    "evaluate/",
    "export/",
    "cli/",
    "ui/",
)


def readme_tree() -> set[str]:
    """The paths in README's tree: two spaces deeper is inside; a folder ends with a slash."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```\n(app\.py.*?)```", text, re.DOTALL)
    assert block, "README.md has no tree"
    found: set[str] = set()
    folders: list[str] = []
    for line in block[1].splitlines():
        indent = (len(line) - len(line.lstrip())) // 2
        name, _, about = line.strip().partition(" ")
        assert about.strip() or name in FOLDERS, name
        folders[indent:] = [name] if name.endswith("/") else []
        found.add("".join(folders[:indent]) + name)
    return found


def test_readmes_tree_is_the_real_tree():
    found = readme_tree()
    told = {path for path in found if path.endswith(".py")}
    real = {str(path.relative_to(ROOT)) for path in sources()}
    assert told - {path for path in told if path.startswith("tests/")} == real
    assert all((ROOT / path).exists() for path in found)
