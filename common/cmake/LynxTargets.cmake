# lynx_library(NAME <name> SRCS ... [DEPS ...] [TESTONLY])
#   Target lynx_<name> with alias lynx::<name>. Includes are always from the repository root:
#   #include "common/kv/block_pool.h".
# lynx_binary(NAME <name> SRCS ... [DEPS ...])
#   Executable in <build>/bin.
# lynx_test(NAME <name> SRCS ... [DEPS ...] [LABEL <label>] [THREADS] [UNSANITIZED])
#   GoogleTest executable, one CTest entry a test case (under sanitizers one in all). LABEL is unit (the default), integration,
#   golden or fault. THREADS: worth running under ThreadSanitizer; the label becomes
#   <label>-threads, since gtest_discover_tests takes no list of labels. Select with ctest -L.
#   UNSANITIZED: compares numbers over many steps; not built for the sanitizer stages, where the same
#   code runs in other tests.
include(GoogleTest)

# Seconds that a test case may take, and under a sanitizer a whole program. The long forms need more.
set(LYNX_CASE_TIMEOUT 120 CACHE STRING "Seconds a test case may take")
set(LYNX_PROGRAM_TIMEOUT 300 CACHE STRING "Seconds a test program may take under a sanitizer")

# What the sanitizer stages build: every GoogleTest, and those marked THREADS.
add_custom_target(sanitized_tests)
add_custom_target(threaded_tests)

function(_lynx_compile target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wconversion -Wshadow
    $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
    $<$<BOOL:${LYNX_WARNINGS_AS_ERRORS}>:-Werror>)
endfunction()

# What nearly every file includes, parsed once: a third of what compiling without optimisation costs.
# Elsewhere files must name what they use, so that the sanitizer builds are the only ones to have it.
if(LYNX_SANITIZER)
  file(CONFIGURE OUTPUT library_headers.cc CONTENT "")
  add_library(library_headers OBJECT ${CMAKE_CURRENT_BINARY_DIR}/library_headers.cc)
  _lynx_compile(library_headers)
  target_precompile_headers(library_headers PRIVATE <algorithm> <cstdint> <functional> <map> <memory>
                            <optional> <span> <string> <string_view> <utility> <vector>
                            <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
                            <absl/time/time.h>)
endif()

function(lynx_library)
  cmake_parse_arguments(ARG "TESTONLY" "NAME" "SRCS;DEPS" ${ARGN})
  if(ARG_TESTONLY AND NOT LYNX_BUILD_TESTS)
    return()
  endif()
  add_library(lynx_${ARG_NAME} STATIC ${ARG_SRCS})
  add_library(lynx::${ARG_NAME} ALIAS lynx_${ARG_NAME})
  target_link_libraries(lynx_${ARG_NAME} PUBLIC ${ARG_DEPS})
  _lynx_compile(lynx_${ARG_NAME})
  if(LYNX_SANITIZER AND NOT LYNX_OPTIMISED)
    target_precompile_headers(lynx_${ARG_NAME} REUSE_FROM library_headers)
  endif()
endfunction()

function(lynx_binary)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS})
  _lynx_compile(${ARG_NAME})
endfunction()

function(lynx_test)
  cmake_parse_arguments(ARG "THREADS;UNSANITIZED" "NAME;LABEL" "SRCS;DEPS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  _lynx_compile(${ARG_NAME})
  target_precompile_headers(${ARG_NAME} REUSE_FROM test_headers)
  if(NOT ARG_UNSANITIZED)
    add_dependencies(sanitized_tests ${ARG_NAME})
  endif()
  if(ARG_THREADS)
    string(APPEND ARG_LABEL -threads)
    add_dependencies(threaded_tests ${ARG_NAME})
  endif()
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(LYNX_SANITIZER)  # Starting an instrumented program costs more than most cases do.
    if(NOT ARG_UNSANITIZED)
      add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
      set_tests_properties(${ARG_NAME} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${LYNX_PROGRAM_TIMEOUT})
    endif()
    return()
  endif()
  gtest_discover_tests(${ARG_NAME}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${LYNX_CASE_TIMEOUT})
endfunction()
