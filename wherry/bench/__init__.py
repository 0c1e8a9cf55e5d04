"""How much load can a server take, and how long do callers wait then?

Reading order: `plan` (the load, and when each request is meant to start), `inputs`
(what is in it), `sources` (when the next one is sent), `load_run`, `connection` and `over_grpc`
(how it is sent), `figures` (what happened to each, and what that means), `report` (how it is
shown).
"""
