"""Real processes in networks of their own, with faults drawn from a seed; ``make chaos``.

``python -m tests.chaos.run --rounds N --seed S``. A round is a process (``tests.chaos.round``) with
namespaces of its own, so that nothing of it outlives it and two rounds do not meet. Faults are
drawn in ``plan``, done in ``faults``; what must hold is checked from outside, in ``promises`` and,
for the answers of coordinators, by ``history`` and ``decisions``.
"""
