"""What is wrong with these model repositories? `wherry check REPO_DIR`.

All that the files say is looked at before a model is loaded, so that one run tells of everything.
"""

from __future__ import annotations

from collections.abc import Mapping

from wherry.cli.serve import control_of
from wherry.cli.settings import Settings
from wherry.cli.show import print_line
from wherry.repository import layout
from wherry.repository.layout import Found
from wherry.runtime.runtime import Runtime
from wherry.values.errors import ConfigError


def check_repositories(runtime: Runtime, settings: Settings) -> bool:
    """Load every model that can be; print the problems of each. True if there are none."""
    given = settings.options.repositories
    try:
        models = layout.scan(given.model_repositories, config_name=given.model_config_name)
    except OSError as error:
        raise ConfigError(f"model repository {error.filename}: {error.strerror}") from None
    control = control_of(settings, runtime)
    try:
        failures = control.try_all()
        problems = {model.name: _problems(model, failures) for model in models}
        for model in models:
            _print(model, problems[model.name])
    finally:
        control.close()
    bad = [name for name, found in problems.items() if found]
    count = f"{len(models)} model" + ("" if len(models) == 1 else "s")
    print_line(
        f"{count}: " + (f"{len(bad)} with problems: {', '.join(bad)}" if bad else "all good")
    )
    return not bad


def _problems(model: Found, failures: Mapping[str, str]) -> list[str]:
    if model.problems:
        return list(model.problems)
    return [failures[model.name]] if model.name in failures else []


def _print(model: Found, problems: list[str]) -> None:
    versions = ", ".join(map(str, model.versions)) or "none"
    print_line(f"{model.name} (versions: {versions}): " + ("PROBLEMS" if problems else "good"))
    for problem in problems:
        print_line(f"  {problem}")
    for notice in model.notices:
        print_line(f"  note: {notice}")
