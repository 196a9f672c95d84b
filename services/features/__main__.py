from services.features.app import main

main()
