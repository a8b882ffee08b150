# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where, and the Debian packages that `cpack` makes of it (deploy/package.sh): three, and a fourth of the GPU
# modules where they are built.
if(TAKT_PACKAGES)
  set(CMAKE_INSTALL_PREFIX /usr)
endif()
include(GNUInstallDirs)
set(units ${PROJECT_SOURCE_DIR}/deploy/systemd)
set(settings ${PROJECT_SOURCE_DIR}/deploy/settings)
set(unit_dir lib/systemd/system)

install(TARGETS takt-coordinator RUNTIME COMPONENT coordinator)
install(FILES ${units}/takt-coordinator.service DESTINATION ${unit_dir} COMPONENT coordinator)
install(FILES ${settings}/coordinator.yaml DESTINATION /etc/takt COMPONENT coordinator)
# Grafana and Prometheus read them there (docs/dashboards.md).
install(DIRECTORY ${PROJECT_SOURCE_DIR}/dashboards DESTINATION ${CMAKE_INSTALL_DATADIR}/takt COMPONENT coordinator
  PATTERN README.md EXCLUDE PATTERN .lint EXCLUDE PATTERN tests EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/docs/alerts.md ${PROJECT_SOURCE_DIR}/docs/metrics.md
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/takt-coordinator COMPONENT coordinator)
install(TARGETS takt-worker takt-relay RUNTIME COMPONENT worker)
install(FILES ${units}/takt-worker.service ${units}/takt-worker@.service ${units}/takt-relay.service
  DESTINATION ${unit_dir} COMPONENT worker)
install(FILES ${settings}/worker.yaml ${settings}/relay.yaml DESTINATION /etc/takt COMPONENT worker)
install(FILES ${units}/takt-worker-gpu.conf DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/takt-worker/examples COMPONENT worker)
get_property(modules GLOBAL PROPERTY TAKT_CUDA_MODULES)
if(modules)
  install(TARGETS ${modules} LIBRARY DESTINATION lib/takt COMPONENT cuda)  # ../lib/takt of the worker's folder
endif()
install(TARGETS takt RUNTIME COMPONENT cli)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy/examples/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/takt-cli/examples
  COMPONENT cli)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy/slurm DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/takt-cli COMPONENT cli)
# The pages link to each other and to README.md. Their links to sources lead nowhere there.
install(FILES ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/takt-cli COMPONENT cli)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/takt-cli COMPONENT cli
  PATTERN logs EXCLUDE)

if(NOT TAKT_PACKAGES)
  return()
endif()

# Manual pages are the programs' own --help, completions the command line's own.
find_program(HELP2MAN help2man REQUIRED)
function(takt_man program section component summary)
  set(page ${PROJECT_BINARY_DIR}/man/${program}.${section})
  add_custom_command(OUTPUT ${page}.gz
    COMMAND ${HELP2MAN} --no-info --section=${section} --name=${summary} --output=${page} $<TARGET_FILE:${program}>
    COMMAND gzip --best --no-name --force ${page}
    DEPENDS ${program} VERBATIM)
  add_custom_target(${program}-man ALL DEPENDS ${page}.gz)
  install(FILES ${page}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} COMPONENT ${component})
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/debian/copyright
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/takt-${component} COMPONENT ${component})
  install(FILES ${PROJECT_BINARY_DIR}/man/CHANGELOG.md.gz
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/takt-${component} COMPONENT ${component})
endfunction()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/man)
execute_process(COMMAND gzip --best --no-name --stdout ${PROJECT_SOURCE_DIR}/CHANGELOG.md
  OUTPUT_FILE ${PROJECT_BINARY_DIR}/man/CHANGELOG.md.gz COMMAND_ERROR_IS_FATAL ANY)
if(modules)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/debian/copyright ${PROJECT_BINARY_DIR}/man/CHANGELOG.md.gz
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/takt-worker-cuda COMPONENT cuda)
endif()
takt_man(takt-coordinator 8 coordinator "plans pipeline-parallel training jobs and hands them to workers")
takt_man(takt-worker 8 worker "runs one rank of a pipeline-parallel training job")
takt_man(takt-relay 8 worker "carries the streams of a host's workers to the coordinator")
takt_man(takt 1 cli "submits and watches pipeline-parallel training jobs")

foreach(shell bash zsh fish)
  set(completion ${PROJECT_BINARY_DIR}/completion/takt.${shell})
  add_custom_command(OUTPUT ${completion}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/completion
    COMMAND sh -c "$<TARGET_FILE:takt> completion ${shell} > ${completion}" DEPENDS takt VERBATIM)
  list(APPEND completions ${completion})
endforeach()
add_custom_target(takt-completions ALL DEPENDS ${completions})
set(completion ${PROJECT_BINARY_DIR}/completion/takt)
install(FILES ${completion}.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME takt COMPONENT cli)
install(FILES ${completion}.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions RENAME _takt COMPONENT cli)
install(FILES ${completion}.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT cli)

# The first line of every template names it there.
set(schema ${PROJECT_BINARY_DIR}/job.schema.json)
add_custom_command(OUTPUT ${schema} COMMAND sh -c "$<TARGET_FILE:takt> schema > ${schema}" DEPENDS takt VERBATIM)
add_custom_target(takt-schema ALL DEPENDS ${schema})
install(FILES ${schema} DESTINATION ${CMAKE_INSTALL_DATADIR}/takt COMPONENT cli)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME takt)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The Takt authors <authors@takt.invalid>")
set(CPACK_SET_DESTDIR ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL coordinator worker cli)
if(modules)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# takt_daemon_package(COMPONENT what a purge removes, more daemons of the package): maintainer scripts and conffiles.
function(takt_daemon_package component state)
  set(UNIT takt-${component})
  set(MORE_UNITS "")
  foreach(daemon ${ARGN})
    string(APPEND MORE_UNITS " takt-${daemon}.service")
  endforeach()
  set(STATE ${state})
  set(control ${PROJECT_BINARY_DIR}/debian/${component})
  foreach(script postinst prerm postrm)
    configure_file(${PROJECT_SOURCE_DIR}/deploy/debian/${script}.in ${control}/${script} @ONLY
      FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  endforeach()
  file(WRITE ${control}/conffiles "/etc/takt/${component}.yaml\n")
  foreach(daemon ${ARGN})
    file(APPEND ${control}/conffiles "/etc/takt/${daemon}.yaml\n")
  endforeach()
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${UNIT} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "adduser, init-system-helpers (>= 1.54~)" PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA
    "${control}/postinst;${control}/prerm;${control}/postrm;${control}/conffiles" PARENT_SCOPE)
endfunction()
takt_daemon_package(coordinator "/var/lib/takt/coordinator")
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_SUGGESTS "etcd-server (>= 3.4)")
takt_daemon_package(worker "/var/lib/takt/data /var/lib/takt/checkpoints /var/lib/takt/kernel-plans" relay)
# The libraries of CUDA come from NVIDIA in many ways, few of which dpkg knows: none is named, a missing one is a message of the worker.
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME takt-worker-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "takt-worker (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS OFF)
configure_file(${PROJECT_SOURCE_DIR}/deploy/debian/cuda-postinst ${PROJECT_BINARY_DIR}/debian/cuda/postinst COPYONLY)
set(CPACK_DEBIAN_CUDA_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/cuda/postinst)
set(CPACK_DEBIAN_CLI_PACKAGE_NAME takt-cli)
set(CPACK_DEBIAN_CLI_PACKAGE_RECOMMENDS "takt-coordinator, takt-worker")
set(CPACK_COMPONENT_COORDINATOR_DESCRIPTION
  "coordinator of the Takt training service\n Plans pipeline-parallel training jobs, proves their schedules and hands\n them to workers.")
set(CPACK_COMPONENT_WORKER_DESCRIPTION
  "worker of the Takt training service\n Runs one rank of a pipeline-parallel training job.")
set(CPACK_COMPONENT_CUDA_DESCRIPTION
  "GPU modules of the worker of the Takt training service\n Built with: ${TAKT_BUILT_IN}.\n Needs NVIDIA's driver and libraries.")
set(CPACK_COMPONENT_CLI_DESCRIPTION
  "command line of the Takt training service\n Submits and watches pipeline-parallel training jobs, shows schedules;\n `takt local` runs a job on one machine.")
include(CPack)
