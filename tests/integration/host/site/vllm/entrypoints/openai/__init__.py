"""Stands in for the package of that name, see `api_server`."""
