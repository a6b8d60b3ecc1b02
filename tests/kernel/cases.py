"""The list of cases. A case is a function of one machine, or of two that reach each other; its name is its test's."""

CASES = {}


class Case:
    def __init__(self, name, function, machines, limit_s, crashes):
        self.name = name
        self.function = function
        self.machines = machines
        self.limit_s = limit_s
        self.crashes = crashes  # needs machines that can be switched off


def add(name, function, *, machines, limit_s=120, crashes=False):
    CASES[name] = Case(name, function, machines, limit_s, crashes)


def case(**properties):
    """Decorator: the function is a case of its name."""

    def decorate(function):
        add(function.__name__, function, **properties)
        return function

    return decorate
