from fake_child import main

main("engine-core")
