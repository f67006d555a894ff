"""Inventories and profiles: YAML in, frozen typed models out, every error with its place."""
