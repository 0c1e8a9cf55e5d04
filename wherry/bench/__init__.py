"""How does a person find out what a server can take, and how long callers wait then?

Reading order: `plan` (what load is asked for, and when each request is meant to start), `inputs`
(what is in it), `sources` (when the next one is sent), `load_run`, `connection` and `over_grpc`
(how it is sent), `figures` (what happened to each, and what that means), `report` (how it is
shown).
"""
