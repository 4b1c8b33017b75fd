RECORDED: list = []
