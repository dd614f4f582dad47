"""The text of Python's source code without what does not compute: its layout, its comments, and
where it lies.
"""

from __future__ import annotations

import ast
import re


def canonical(content: bytes, package: str) -> bytes:
    """Return the syntax tree of a Python file as text, the same on every supported Python; what is
    not valid Python, such as C++, is returned as it is.

    The nodes and their fields count, annotations included; docstrings, and the positions of nodes,
    do not. Imports from ``package`` count by the imported names alone, in alphabetical order, and
    texts such as ``package.module`` by their last word, so that files of the package may move.
    """
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return content
    imported = set[str]()

    def text(value: object) -> str:
        match value:
            case list():
                return f"[{','.join(filter(None, map(text, value)))}]"
            case ast.Expr(value=ast.Constant(value=str())):  # a docstring
                return ""
            case ast.Constant(value=constant):
                if isinstance(constant, str) and re.fullmatch(rf"{package}(\.\w+)+", constant):
                    constant = constant.rpartition(".")[2]
                # the sign tells the constant None from a missing default; repr, other than ascii,
                # depends on the version of Unicode
                return f"={constant!a}"
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                module = getattr(value, "module", names[0].name)
                if getattr(value, "level", 0) or module.split(".")[0] == package:
                    imported.update(f"{x.name.rpartition('.')[2]} {x.asname}" for x in names)
                    return ""
            case ast.JoinedStr(values=values):  # some versions of Python add empty constants
                return text([part for part in values if getattr(part, "value", None) != ""])
        if not isinstance(value, ast.AST):
            return ascii(value)
        fields = ast.iter_fields(value)  # Python 3.12 adds empty lists, and 3.13 more of them
        texts = (f"{name}={text(part)}" for name, part in fields if part not in (None, []))
        return f"{type(value).__name__}({','.join(texts)})"

    return "\n".join((text(tree), *sorted(imported))).encode()
