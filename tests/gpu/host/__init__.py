"""The whole path of glm5-deploy on a real GPU host; `walk.py` is the program."""
