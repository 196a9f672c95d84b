from services.playlists.app import main

main()
