# `cmake --install` and, by cpack, Debian packages: `lynx`, which needs no CUDA, and beside it `lynx-cuda`, the plug-in.
# Included last: it installs targets of the other folders.
include(GNUInstallDirs)

install(TARGETS lynx lynx-router lynx-prefill lynx-decode RUNTIME COMPONENT lynx)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/lynx-tiny-moe DESTINATION ${CMAKE_INSTALL_DATADIR}/lynx/models
        COMPONENT lynx)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy/grafana ${PROJECT_SOURCE_DIR}/deploy/prometheus
        DESTINATION ${CMAKE_INSTALL_DATADIR}/lynx COMPONENT lynx)
install(FILES README.md CHANGELOG.md NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT lynx)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs COMPONENT lynx)
# Of the package alone: an installation elsewhere writes nothing outside its prefix.
set(units lynx-router lynx-prefill lynx-decode)
foreach(unit IN LISTS units)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/debian/${unit}.service DESTINATION lib/systemd/system
          COMPONENT lynx-units EXCLUDE_FROM_ALL)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/debian/${unit}.conf DESTINATION /etc/lynx
          COMPONENT lynx-units EXCLUDE_FROM_ALL)
endforeach()
install(FILES deploy/debian/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT lynx-units EXCLUDE_FROM_ALL)
if(TARGET lynx_cuda)
  # As a file: with the run-time search path of the build, which is where the toolkit's libraries are on most hosts.
  install(FILES $<TARGET_FILE:lynx_cuda> DESTINATION ${CMAKE_INSTALL_LIBDIR}/lynx COMPONENT lynx-cuda)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR Lynx)
set(CPACK_PACKAGE_CONTACT "Lynx maintainers <maintainers@lynx.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENTS_ALL lynx lynx-units)
set(CPACK_COMPONENT_LYNX_GROUP lynx)
set(CPACK_COMPONENT_LYNX-UNITS_GROUP lynx)
set(CPACK_DEBIAN_LYNX_PACKAGE_NAME lynx)
set(CPACK_DEBIAN_LYNX_PACKAGE_RECOMMENDS ibverbs-providers)
set(CPACK_DEBIAN_LYNX_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/conffiles)
set(CPACK_DEBIAN_LYNX_DESCRIPTION
    "serving cluster for Mixture-of-Experts language models
 Router, prefill and decode nodes, and the command lynx; a small demo model.")
# What an operator edits stays when the package is upgraded.
list(TRANSFORM units REPLACE "(.+)" "/etc/lynx/\\1.conf" OUTPUT_VARIABLE conffiles)
list(JOIN conffiles "\n" conffiles)
file(WRITE ${PROJECT_BINARY_DIR}/conffiles "${conffiles}\n")
if(TARGET lynx_cuda)
  list(APPEND CPACK_COMPONENTS_ALL lynx-cuda)
  set(CPACK_COMPONENT_LYNX-CUDA_GROUP lynx-cuda)
  set(CPACK_DEBIAN_LYNX-CUDA_PACKAGE_NAME lynx-cuda)
  set(CPACK_DEBIAN_LYNX-CUDA_PACKAGE_DEPENDS "lynx (= ${PROJECT_VERSION})")
  # NCCL is no package of Debian's.
  set(CPACK_DEBIAN_LYNX-CUDA_PACKAGE_SHLIBDEPS OFF)
  set(CPACK_DEBIAN_LYNX-CUDA_DESCRIPTION
      "CUDA plug-in of Lynx
 Needs NVIDIA's driver and libnccl.so.2.")
endif()
include(CPack)
