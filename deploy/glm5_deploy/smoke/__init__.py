"""Proof that a running server answers correctly: `glm5_deploy.smoke.run.run_smoke`."""
