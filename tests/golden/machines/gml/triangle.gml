graph [
  Network "Triangle"
  node [ id 0 label "Bern" Country "Switzerland" Longitude 7.44 Latitude 46.95 Internal 1 ]
  node [ id 1 label "Geneva" Country "Switzerland" Longitude 6.14 Latitude 46.20 Internal 1 ]
  node [ id 2 label "Z&#252;rich" Country "Switzerland" Longitude 8.54 Latitude 47.37 Internal 1 ]
  edge [ source 0 target 1 LinkSpeed "100" LinkSpeedUnits "G" LinkSpeedRaw 100000000000.0 ]
  edge [ source 1 target 2 LinkSpeed "100" LinkSpeedUnits "G" LinkSpeedRaw 100000000000.0 ]
  edge [ source 0 target 2 LinkLabel "unknown" ]
]
