"""``python -m glm5_deploy`` and the console script."""

from glm5_deploy.cli.app import main

if __name__ == "__main__":
    main()
