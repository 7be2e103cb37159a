"""Routes of the laboratory: warm starts."""

from armwise.agent.lab.warmstart.routes import router

ROUTES = tuple(router.routes)

DIALECTS = ()
