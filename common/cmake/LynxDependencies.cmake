# Every outside package, in one place. Which target may use which is the table in
# docs/architecture.md, checked by tests/arch.
find_package(Threads REQUIRED)
find_package(absl REQUIRED CONFIG)
find_package(Protobuf REQUIRED)  # Module mode: Debian's package has no CMake config of its own.
find_package(ucx REQUIRED CONFIG)
find_package(cppzmq REQUIRED CONFIG)
find_package(prometheus-cpp REQUIRED CONFIG)
find_package(spdlog REQUIRED CONFIG)
find_package(nlohmann_json REQUIRED CONFIG)
find_package(CLI11 REQUIRED CONFIG)
find_package(ICU REQUIRED COMPONENTS uc)
find_package(Boost 1.81 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
if(LYNX_BUILD_TESTS)
  find_package(GTest REQUIRED CONFIG)
endif()
