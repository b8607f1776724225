"""Each module of some length has a test file of its name, or a line that names another one."""

import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("tested_elsewhere.toml")
LONG = 150
"""Lines of a module from which on it needs tests of its name."""
TOOLS = ("tools", "replays")
"""The folders with the tests of `turnwire_tools`."""


def area_of(module: Path) -> str:
    """The package of a module that has a folder of tests."""
    return module.parts[1] if module.parts[0] == "services" else module.parts[0]


def names_of(area: str) -> list[str]:
    """The names of an area's test files, without `.py`."""
    folders = TOOLS if area == "turnwire_tools" else (area,)
    return [test.stem for folder in folders for test in ROOT.glob(f"tests/{folder}/**/test_*.py")]


def untested_names() -> dict[str, str]:
    """The long modules without a test file of their name; of each, the end of that name."""
    modules = [
        path.relative_to(ROOT)
        for package in ("services", "schemas", "turnwire_tools")
        for path in ROOT.glob(f"{package}/**/*.py")
    ]
    counts = Counter((area_of(module), module.stem) for module in modules)
    tests = {area: names_of(area) for area in {area_of(module) for module in modules}}
    untested = {}
    for module in modules:
        area = area_of(module)
        name = module.stem
        if counts[area, name] > 1:
            name = f"{module.parent.name}_{name}"
        is_long = len((ROOT / module).read_text(encoding="utf-8").splitlines()) >= LONG
        if is_long and not any(test.endswith(f"_{name}") for test in tests[area]):
            untested[str(module)] = name
    return untested


def test_long_modules_have_tests_of_their_name() -> None:
    untested = untested_names()
    table: dict[str, str] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    missing = [
        f"{module}: test_*_{untested[module]}.py" for module in untested if module not in table
    ]
    assert not missing, f"no test file of their name, and no line in {TABLE.name}"
    assert not table.keys() - untested.keys(), (
        f"these lines of {TABLE.name} are not needed any more"
    )
    lost = {test for test in table.values() if not (ROOT / test).is_file()}
    assert not lost, f"{TABLE.name} names files that do not exist"
