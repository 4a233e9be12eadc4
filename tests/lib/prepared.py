"""What a server can prepare."""

import psycopg2

from lib.common import query


def of_permanent(node):
    """Does it prepare transactions that have written permanent mixedcc tables?"""
    session = node.connect()
    query(session, "CREATE TABLE asked (id int PRIMARY KEY) USING mixedcc")
    try:
        query(session, "BEGIN; INSERT INTO asked VALUES (1); PREPARE TRANSACTION 'asked'")
        query(session, "ROLLBACK PREPARED 'asked'")
        return True
    except psycopg2.errors.FeatureNotSupported:
        query(session, "ROLLBACK")
        return False
    finally:
        query(session, "DROP TABLE asked")
        session.close()
