from services.materialiser.app import main

main()
