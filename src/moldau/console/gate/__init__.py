"""Who may do what: people, roles, sessions, the guard before every route, and the audit trail."""
