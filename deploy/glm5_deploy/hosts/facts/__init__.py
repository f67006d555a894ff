"""What a host is like: each fact is a command and a pure parser, all gathered in one round trip."""

from glm5_deploy.hosts.facts.fact import Fact, FactOutput, gather

__all__ = ["Fact", "FactOutput", "gather"]
