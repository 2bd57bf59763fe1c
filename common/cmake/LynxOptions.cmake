option(LYNX_BUILD_TESTS "Build the tests" ON)
option(LYNX_WARNINGS_AS_ERRORS "Fail the build on a warning; on in CI, off on a user's machine" OFF)
set(LYNX_CUDA AUTO CACHE STRING "Build the CUDA plug-in: ON, OFF, or AUTO, where CUDA and NCCL are found")
set_property(CACHE LYNX_CUDA PROPERTY STRINGS AUTO ON OFF)
# Machine code for each, and for what comes after the last one PTX.
set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100-real;120" CACHE STRING "GPUs to build kernels for")
set(LYNX_SANITIZER "" CACHE STRING "'address' (with UBSan), 'thread' or empty")
set_property(CACHE LYNX_SANITIZER PROPERTY STRINGS "" address thread)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# LYNX_CHECK and assert stay on in every build: a broken invariant must stop the process, not
# corrupt an answer.
string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
# Line tables only: stack traces name lines, and a cold build stays fast and small.
string(APPEND CMAKE_CXX_FLAGS_RELEASE " -g1")
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")

# -O0: optimising instrumented code takes twice as long to compile and finds nothing more. Kernels are
# optimised even so (kernels/CMakeLists.txt), or running the tests would take longer than that saves.
if(LYNX_SANITIZER STREQUAL "address")
  # Left out: what AddressSanitizer or the processor catches anyway, at a third of the compile time.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=null,vptr,object-size,alignment
                      -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O0 -g1)
  add_link_options(-fsanitize=address,undefined)
elseif(LYNX_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -O0 -g1)
  add_link_options(-fsanitize=thread)
elseif(LYNX_SANITIZER)
  message(FATAL_ERROR "LYNX_SANITIZER must be 'address', 'thread' or empty, not '${LYNX_SANITIZER}'")
endif()

find_program(LYNX_CCACHE ccache)
if(LYNX_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${LYNX_CCACHE})
endif()
