"""TEST SUPPORT: empty modules for packages that SGLang imports at the top and a text-only CPU run never calls."""

import importlib.abc
import importlib.machinery
import sys
import types

ROOTS = {"torchvision", "llguidance", "outlines", "modelscope", "soundfile"}


class _Anything:
    """Can be called, subclassed, subscribed and used as a decorator, and does nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __getitem__(self, item):
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases):
        return (object,)


class _Empty(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {"__module__": self.__name__}) if name[:1].isupper() else _Anything()
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers last, so a package that is really there wins."""

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] not in ROOTS or _is_question(sys._getframe(1)):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Empty(spec.name)

    def exec_module(self, module):
        pass


def _is_question(frame):
    """Whether somebody asks if a package is there, rather than imports it: the answer must stay no."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith("import_utils.py") or code.co_name == "_is_package_available":
            return True
        frame = frame.f_back
    return False


def install():
    """Once a process."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
