"""The package's name and folders; no other module counts folders from its own file."""

import os
import sys

NAME = __name__.partition(".")[0]
# texts: until ``search_path`` is called, pathlib may import files of the working folder
ROOT = sys.modules[NAME].__path__[0]
KINDS = os.path.join(ROOT, "components")
"""The folder of the kinds of components, each of which is a package."""
FIGURES = os.path.join(ROOT, "answers", "figures")
HOME = os.path.dirname(ROOT)
"""The folder that the package is imported from."""
