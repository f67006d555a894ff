"""The Jinja2 templates of the project, with the project's own quoting as filters."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from glm5_deploy.config.resources import resource_dir
from glm5_deploy.stages.systemd import double_specifiers, exec_line

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(resource_dir("templates")),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(specifiers=double_specifiers, exec_line=exec_line)
    return environment


def render(template: str, /, **values: object) -> str:
    """Render a template; a name it uses and does not get is an error."""
    return _environment().get_template(template).render(**values)
