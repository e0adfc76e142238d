"""What must not be lost: jobs, decisions, outcomes, profiles, energy; SQLite or PostgreSQL."""
