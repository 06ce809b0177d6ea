"""TEST SUPPORT: Python imports this at its start in every process of a server under test: it is on PYTHONPATH there."""

import ddscope_standins.imports

ddscope_standins.imports.install()
