"""A clock that a test moves: in one test database `now()` answers what the test has set, for every session and default.

PostgreSQL looks a function up along the search path: with `public` before `pg_catalog` ours is found first. Stored
defaults name their function for good, so they are written anew.
"""

from datetime import UTC, datetime, timedelta

from sqlalchemy import create_engine, text

_MADE = (
    "CREATE TABLE public.clock_hand (at timestamptz NOT NULL)",
    "GRANT SELECT ON public.clock_hand TO tidegate_app",
    """
    CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE
    AS 'SELECT at FROM public.clock_hand'
    """,
)
_DEFAULTS = text(
    """
    SELECT table_name, column_name FROM information_schema.columns
    WHERE table_schema = 'public' AND column_default = 'now()'
    """
)
START = datetime(2030, 1, 7, 12, 3, tzinfo=UTC)
"""A Monday."""


class Clock:
    """The hand of one database's clock. Make it before the first session of the application connects."""

    def __init__(self, url: str, at: datetime = START) -> None:
        self.at = at
        self._owner = create_engine(url, hide_parameters=True, pool_size=1, max_overflow=0)
        with self._owner.begin() as connection:
            stamped = connection.execute(_DEFAULTS).all()
            for statement in _MADE:
                connection.execute(text(statement))
            connection.execute(text("INSERT INTO public.clock_hand VALUES (:at)"), {"at": at})
            for table, column in stamped:
                connection.execute(text(f'ALTER TABLE "{table}" ALTER COLUMN "{column}" SET DEFAULT public.now()'))
            name = connection.execute(text("SELECT quote_ident(current_database())")).scalar_one()
            connection.execute(text(f"ALTER DATABASE {name} SET search_path = public, pg_catalog"))

    def move(self, by: timedelta) -> None:
        """Let so much time pass at once."""
        self.at += by
        with self._owner.begin() as connection:
            connection.execute(text("UPDATE public.clock_hand SET at = :at"), {"at": self.at})

    def close(self) -> None:
        """Let the connection go."""
        self._owner.dispose()
