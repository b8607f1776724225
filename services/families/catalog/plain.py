"""Models without reasoning and without calls: everything is text."""

from services.families.authoring import Family, Markup, Style

FAMILY = Family(
    name="plain",
    models="base models, and chat models that know no tools",
    tool_parsers=("none",),
    grammar=Markup(),
    style=Style(),
)
