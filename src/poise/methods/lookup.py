"""The registry of methods, and how their names are read: names, groups, and ``METHOD | STEP``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from poise.errors import InvalidOptionError, UnknownNameError
from poise.methods.method import BAR, About, Method, Step, Term, parameters
from poise.objectives import objectives
from poise.posthoc import posthoc
from poise.registry import Registry, check_options
from poise.rules import rules

methods: Registry[Method] = Registry("method", of=Method)
ALL = "all"  # of every group, those that answer an image from nothing but its views
GROUPS = {
    "paper": "the paper's seven methods",
    "ablation": "parts of the paper's objective that its tables leave out",
    "peers": "methods of other papers that answer each image by itself",
    "streams": "methods of other papers that remember the images before",
    "few-shot": "methods of other papers that need a few labelled images, in a file of `poise fit`",
    "own": "methods of your own package",
}
_FIXED = ("name", "terms", "cats", "about", "rule", "rule_options", "posthoc")


def register(method: Method) -> Method:
    """Register a method by its name for the command line, the benchmark, tables and figures.

    >>> spread = Method(name="kld+spread", terms=(Term("divergence"), Term("dispersion", 5.0)))
    >>> register(spread).name in names("own")
    True
    >>> unregister("kld+spread")
    """
    if method.about.group not in GROUPS:
        raise UnknownNameError.of("group of methods", method.about.group, GROUPS)
    if BAR.strip() in method.name or "," in method.name or method.name in (ALL, *GROUPS):
        raise InvalidOptionError(
            f"The method's name is '{method.name}'.",
            hint=f"A registered name has no bar and no comma, and is none of: {', '.join((ALL, *GROUPS))}.",
        )
    return methods.add(method.name)(method)


def unregister(name: str) -> None:
    """Remove the method called ``name`` from the registry."""
    methods.remove(name)


def names(group: str = "paper") -> list[str]:
    """Return the names of one of `GROUPS` in display order.

    "all" are those of every group that need neither the images before nor labelled ones, so that they run everywhere.

    >>> names()
    ['zero-shot', 'tpt', 'c-tpt', 'o-tpt', 'tpt+cats', 'kld', 'kld+cats']
    >>> "mta" in names("peers"), "mta" in names("all"), "tip-adapter" in names("all")
    (True, True, False)
    """
    if group == ALL:
        return [name for name in every_name() if not {"stream", "labels"} & set(methods.get(name).needs)]
    if group not in GROUPS:
        raise UnknownNameError.of("group of methods", group, (ALL, *GROUPS))
    rows = [methods.get(name) for name in methods]
    return [row.name for row in sorted(rows, key=lambda row: row.about.order) if row.about.group == group]


def every_name() -> list[str]:
    """Return the names of all methods in display order."""
    return [name for group in GROUPS for name in names(group)]


def expand(chosen: str | Iterable[str]) -> list[str]:
    """Return the method names that a choice means: groups are replaced by their names, spaces around "|" are uniform.

    Args:
        chosen: names and groups, as a list or a text with commas.

    >>> expand("tpt, kld+cats|cots")
    ['tpt', 'kld+cats | cots']
    """
    listed = chosen.split(",") if isinstance(chosen, str) else chosen
    found = [canonical(text) for text in listed if text.strip()]
    return [name for text in found for name in (names(text) if text in (ALL, *GROUPS) else [text])]


def canonical(name: str) -> str:
    """Return a name with one space on each side of "|"."""
    return BAR.join(part.strip() for part in name.split("|"))


def get(name: str, /, **options: Any) -> Method:
    """Return the method called ``name`` with some of its options changed.

    Args:
        name: a registered method, or one with post-hoc steps after it: ``"kld+cats | cots"``.
        options: settings of the target and the optimiser, ``weight`` (of the regulariser, if there is one), the rule's
            parameters, and, under the name of an objective or a post-hoc step, a dictionary of its parameters. What
            the method minimises can't be changed, so that a record called "tpt" is TPT: for another objective, make a
            `Method` with another name. Options without an effect on the method are refused.

    >>> get("kld+cats", steps=3).steps
    3
    >>> get("c-tpt", weight=30.0).terms[1].weight
    30.0
    >>> get("mta | sals", lambda_q=3.0).describe()
    'mta(lambda_y=0.2, lambda_q=3.0), then sals'
    """
    first, *after = canonical(name).split(BAR)
    if first in posthoc and first not in methods:
        raise UnknownNameError(
            f"'{first}' is a post-hoc step, not a method.",
            hint=f"Write it after a method, for example 'zero-shot{BAR}{first}'.",
        )
    method, name = methods.get(first), canonical(name)
    _check_known(name, method, after, options)
    steps = tuple(Step(step, _parameters_of(step, name, options)) for step in after)
    terms = [
        replace(term, options={**term.options, **_parameters_of(term.objective, name, options)})
        for term in method.terms
    ]
    if "weight" in options and len(terms) == 2:  # of the regulariser, on shifted data too; a rule may have one as well
        check_options(Term, {"weight": options["weight"]}, f"'{name}'")
        terms[1] = replace(terms[1], weight=options.pop("weight"), shift_weight=None)
    of_rule = {option: options.pop(option) for option in _rule_parameters(method) if option in options}
    check_options(Method, options, f"'{name}'")
    if after:
        steps, options["about"] = (*method.posthoc, *steps), _about(method, steps)
    return replace(
        method,
        **{
            "name": name,
            "terms": tuple(terms),
            "posthoc": steps or method.posthoc,
            "rule_options": {**method.rule_options, **of_rule},
            **options,
        },
    )


def _about(method: Method, steps: tuple[Step, ...]) -> About:
    made = [step.build() for step in steps]
    citations = dict.fromkeys([method.about.citation, *(step.citation for step in made)])
    description = ", then ".join([method.name, *(step.name for step in steps)])
    cited = "; ".join(filter(None, citations))
    return replace(method.about, description=description, citation=cited, dash=made[-1].dash)


def _rule_parameters(method: Method) -> list[str]:
    """The rule's parameters that are not the method's."""
    shared = method.shared_with_rule() if method.rule else {}
    return [option for option in parameters(rules.get(method.rule)) if option not in shared] if method.rule else []


def _check_known(name: str, method: Method, after: list[str], options: Mapping[str, Any]) -> None:
    settings = [entry.name for entry in dataclasses.fields(Method) if entry.name not in _FIXED]
    known = [setting for setting in settings if setting not in method.idle]
    known += ["weight"] if len(method.terms) == 2 else []
    known += [term.objective for term in method.terms if {*parameters(objectives.get(term.objective))} - {"target"}]
    known += [*_rule_parameters(method), *after]
    for step in after:
        posthoc.get(step)
    for option in options:
        if reason := method.idle.get(option):
            raise InvalidOptionError(
                f"The option '{option}' has no effect on '{name}': {reason}.",
                hint=f"Leave it out. Known: {', '.join(sorted(known)) or 'none'}.",
            )
        if option in _FIXED:
            raise InvalidOptionError(
                f"The option '{option}' would make '{name}' another method.",
                hint="Make a Method with another name, and poise.methods.register it.",
            )
        if option not in known and option not in [term.objective for term in method.terms]:
            raise UnknownNameError.of("option", option, known, owner=f"the method '{name}'")


def _parameters_of(part: str, name: str, options: dict[str, Any]) -> Mapping[str, Any]:
    """Remove the parameters of an objective or a post-hoc step from ``options``, and return them."""
    given = options.pop(part, {})
    if not isinstance(given, Mapping):
        kind = "objective" if part not in posthoc else "post-hoc step"
        raise InvalidOptionError(
            f"The option '{part}' of '{name}' is {given!r}.", hint=f"Name a parameter of the {kind}: {part}.PARAMETER."
        )
    return given
