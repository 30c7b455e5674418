"""Tables of records in files: read, encoded by a public schema, fitted and predicted."""
