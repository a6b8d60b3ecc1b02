#include "src/trace/pmpi/mpi_abi.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace verbena::trace {

namespace {

// In the order in which they were loaded; the program itself has an empty one.
int add_path(dl_phdr_info* info, size_t /*size*/, void* context) {
  static_cast<std::vector<std::string>*>(context)->emplace_back(info->dlpi_name);
  return 0;
}

struct Found {
  void* library = nullptr;
  std::string path;
};

// The first library of this process that has the MPI's own functions, wherever it was loaded (an
// extension of Python's has it in a scope of its own) and whatever its name: MPICH's is libmpi.so,
// libmpich.so or libmpi_cray.so.
Found find_library() {
  // dlopen() is not for callbacks of dl_iterate_phdr(), which holds a lock.
  std::vector<std::string> paths;
  dl_iterate_phdr(add_path, &paths);
  for (const std::string& path : paths) {
    void* object = dlopen(path.empty() ? nullptr : path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (object == nullptr) continue;
    // Its own, or that of a library which it needs.
    const void* function = dlsym(object, "PMPI_Init");
    Dl_info info = {};
    link_map* owner = nullptr;
    Found found;
    if (function != nullptr &&
        dladdr1(function, &info, reinterpret_cast<void**>(&owner), RTLD_DL_LINKMAP) != 0 &&
        owner != nullptr) {
      found.path = owner->l_name;
      found.library =
          dlopen(found.path.empty() ? nullptr : found.path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    }
    dlclose(object);
    if (found.library != nullptr) return found;
  }
  return {};
}

[[noreturn]] void end_process(const char* what, const char* name) {
  std::fprintf(stderr, "verbena: error: the tracer %s '%s'; run the program without it\n", what,
               name);
  std::_Exit(1);
}

Handle variable(void* library, const char* name) {
  void* address = dlsym(library, name);
  if (address == nullptr) end_process("knows no MPI without", name);
  return reinterpret_cast<Handle>(address);
}

MpiAbi mpich_abi() {
  return {.handle_bytes = 4,
          .status_bytes = 20,
          .source_offset = 8,
          .tag_offset = 12,
          .any_source = -2,
          .any_tag = -1,
          .process_null = -1,
          .root = -3,
          .status_ignore = 1,
          .in_place = ~Handle{0},
          .world = 0x44000000,
          .self = 0x44000001,
          .comm_null = 0x04000000,
          .request_null = 0x2c000000,
          .no_message = 0x6c000000,
          .byte = 0x4c00010d};
}

MpiAbi open_mpi_abi(void* library) {
  return {.handle_bytes = 8,
          .status_bytes = 24,
          .source_offset = 0,
          .tag_offset = 4,
          .any_source = -1,
          .any_tag = -1,
          .process_null = -2,
          .root = -4,
          .status_ignore = 0,
          .in_place = 1,
          .world = variable(library, "ompi_mpi_comm_world"),
          .self = variable(library, "ompi_mpi_comm_self"),
          .comm_null = variable(library, "ompi_mpi_comm_null"),
          .request_null = variable(library, "ompi_request_null"),
          .no_message = variable(library, "ompi_message_no_proc"),
          .byte = variable(library, "ompi_mpi_byte")};
}

MpiAbi standard_abi() {
  return {.handle_bytes = 8,
          .status_bytes = 32,
          .source_offset = 0,
          .tag_offset = 4,
          .any_source = -1,
          .any_tag = -2,
          .process_null = -3,
          .root = -4,
          .status_ignore = 0,
          .in_place = 1,
          .world = 0x101,
          .self = 0x102,
          .comm_null = 0x100,
          .request_null = 0x180,
          .no_message = 0x129,
          .byte = 0x247};
}

MpiAbi find_abi() {
  const Found found = find_library();
  if (found.library == nullptr) end_process("found no MPI library, that is none with", "PMPI_Init");
  const std::string name = found.path.substr(found.path.rfind('/') + 1);
  MpiAbi abi = mpich_abi();
  if (dlsym(found.library, "ompi_mpi_comm_world") != nullptr) {
    abi = open_mpi_abi(found.library);
  } else if (name.starts_with("libmpi_abi.so")) {
    abi = standard_abi();
  }
  abi.library = found.library;
  return abi;
}

int load_int(const void* from, size_t offset) {
  int value = 0;
  std::memcpy(&value, static_cast<const char*>(from) + offset, sizeof(value));
  return value;
}

}  // namespace

Handle MpiAbi::load(const void* handles, size_t number) const {
  Handle handle = 0;
  std::memcpy(&handle, static_cast<const char*>(handles) + number * handle_bytes, handle_bytes);
  return handle;
}

int MpiAbi::source_of(const void* status) const { return load_int(status, source_offset); }
int MpiAbi::tag_of(const void* status) const { return load_int(status, tag_offset); }

const MpiAbi& mpi_abi() {
  static const MpiAbi abi = find_abi();
  return abi;
}

void* find_pmpi(const char* name) { return dlsym(mpi_abi().library, name); }

void* pmpi_or_exit(const char* name) {
  void* function = find_pmpi(name);
  if (function == nullptr) {
    std::fprintf(stderr,
                 "verbena: error: this MPI has no %s, which the tracer offers its program; record "
                 "with --without-large-counts\n",
                 name);
    std::_Exit(1);
  }
  return function;
}

}  // namespace verbena::trace
