// The ways in which parts of one program come to soft0, for one_rnic_test.cc:
//
//   one_rnic_process open             this library alone; prints why it cannot
//   one_rnic_process list             under `verbena run`: libibverbs, whose list lacks soft0
//   one_rnic_process plain            under `verbena run`: this library, and libibverbs
//   one_rnic_process modules A B      two modules that each contain this library, and this library
//   one_rnic_process copy LIBRARY     another copy of libverbena.so, loaded by its path
//   one_rnic_process namespace LIBRARY  the same libverbena.so, loaded into another namespace
//   one_rnic_process renamed A B      two copies of libverbena.so, by names of their own
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "src/device/soft/soft_rnic.h"
#include "src/device/verbs_for_test.h"
#include "tests/one_rnic/module.h"
#include "verbena/device.h"

namespace {

using verbena::Device;
using verbena::test::Buffer;
using verbena::test::connect;
using verbena::test::End;
using verbena::test::kAllAccess;
using verbena::test::Node;
using verbena::test::post;
using verbena::test::SendRequest;

int failures = 0;

void check_at(bool holds, const char* what, int line) {
  if (holds) return;
  std::printf("FAILED in line %d: %s (errno: %s)\n", line, what, std::strerror(errno));
  ++failures;
}
#define CHECK(condition) check_at((condition), #condition, __LINE__)

// Whether the process is one software RNIC: it has one memory file, and one place in the registry,
// which no other process uses.
void check_one_rnic() {
  namespace fs = std::filesystem;
  int memory_files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (target.starts_with("/memfd:")) ++memory_files;
  }
  CHECK(memory_files == 1);
  const fs::recursive_directory_iterator registry(std::getenv("VERBENA_RUNTIME_DIR"));
  CHECK(std::count_if(begin(registry), end(registry), [](const fs::directory_entry& entry) {
          return entry.path().filename().string().starts_with("soft0.");
        }) == 1);
}

bool is_loaded() { return dlopen(verbena::soft::kLibraryName, RTLD_NOW | RTLD_NOLOAD) != nullptr; }

int open() {
  CHECK(!is_loaded());
  const auto device = Device::open("soft0");
  if (!device.ok()) {
    std::printf("%s\n", device.status().message().c_str());
    return 1;
  }
  CHECK(is_loaded());
  check_one_rnic();
  return failures;
}

int list() {
  int count = -1;
  ibv_device** devices = ibv_get_device_list(&count);
  CHECK(devices != nullptr && count >= 0 && devices[count] == nullptr);
  for (int i = 0; i < count; ++i) CHECK(std::strcmp(devices[i]->name, "soft0") != 0);
  ibv_free_device_list(devices);
  // Memory calls and verbs work as without it.
  void* pages = mmap(nullptr, 1 << 16, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(madvise(pages, 1 << 16, MADV_DONTNEED) == 0 && munmap(pages, 1 << 16) == 0);
  return failures;
}

// On soft0, a request is done when it has been posted.
void carry_out(End& end, const SendRequest& request) {
  ibv_wc completion{};
  CHECK(post(end.qp(), request) == 0);
  CHECK(ibv_poll_cq(end.cq(), 1, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
}

int plain() {
  CHECK(is_loaded());  // by the library in front of libibverbs
  const Node node;
  ibv_device** list = ibv_get_device_list(nullptr);
  CHECK(list[0] == node.device.get()->device);
  ibv_context* context = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  CHECK(context != nullptr && context->device == node.device.get()->device);
  check_one_rnic();

  // The same pages, registered in both ways; a request that uses the keys of both.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Buffer memory(node, 2 * page);
  ibv_mr* region = ibv_reg_mr(node.domain.get(), memory.data(), 2 * page, kAllAccess);
  CHECK(region != nullptr && region->rkey != memory.key());
  if (region == nullptr) return failures;
  End a(node);
  End b(node);
  connect(a, b);
  memory.fill(7, 0, page);
  carry_out(a, {.opcode = IBV_WR_RDMA_WRITE,
                .sges = {memory.sge(0, page)},
                .remote_address = memory.address(page),
                .rkey = region->rkey});
  CHECK(memory.has(7, page, page));
  CHECK(ibv_dereg_mr(region) == 0);
  CHECK(memory.has(7, page, page));

  // The library in front of libibverbs tells the RNIC of pages that this library registered.
  CHECK(madvise(memory.data() + page, page, MADV_DONTNEED) == 0);
  carry_out(a, {.opcode = IBV_WR_RDMA_READ,
                .sges = {memory.sge(0, page)},
                .remote_address = memory.address(page),
                .rkey = memory.key()});
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  CHECK(std::all_of(memory.data(), memory.data() + 2 * page, is_zero));

  // An object of the one way is one for the other way.
  ibv_cq* completions = ibv_create_cq(node.device.get(), 4, nullptr, nullptr, 0);
  CHECK(completions != nullptr && node.control().destroy_cq(completions) == 0);
  CHECK(ibv_destroy_cq(completions) == EINVAL);
  CHECK(ibv_close_device(context) == 0);
  check_one_rnic();
  return failures;
}

template <typename Function>
Function* find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) {
    std::printf("no %s: %s\n", name, dlerror());
    std::exit(1);
  }
  return reinterpret_cast<Function*>(found);
}

void* loaded(void* library) {
  if (library == nullptr) {
    std::printf("%s\n", dlerror());
    std::exit(1);
  }
  return library;
}

void* load(const char* path) { return loaded(dlopen(path, RTLD_NOW | RTLD_LOCAL)); }

int modules(const char* first_path, const char* second_path) {
  void* first = load(first_path);
  void* second = load(second_path);
  CHECK(first != second);
  ibv_context* first_context = find<decltype(module_context)>(first, "module_context")();
  ibv_context* second_context = find<decltype(module_context)>(second, "module_context")();
  CHECK(first_context != second_context && first_context->device == second_context->device);
  check_one_rnic();

  // The same pages: in two RNICs the later registration would take them from the earlier one.
  const Node node;
  CHECK(node.device.get()->device == first_context->device);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Buffer memory(node, page);
  memory.fill(3, 0, page);
  const uint32_t first_key =
      find<decltype(module_register)>(first, "module_register")(memory.data(), page);
  const uint32_t second_key =
      find<decltype(module_register)>(second, "module_register")(memory.data(), page);
  CHECK(first_key != second_key && first_key != memory.key() && second_key != memory.key());
  CHECK(memory.has(3, 0, page));
  check_one_rnic();
  return failures;
}

const verbena::soft::SoftRnic* rnic_of(void* library) {
  return find<decltype(verbena_soft_rnic)>(library,
                                           "verbena_soft_rnic")(verbena::soft::kSoftRnicVersion);
}

// `load_other` comes after this process's own: the loader takes a library that it has for another
// of the same name.
template <typename LoadOther>
int copy(const LoadOther& load_other) {
  const Node node;
  void* const library = load_other();
  const verbena::soft::SoftRnic* other = rnic_of(library);
  CHECK(other->device != node.device.get()->device);
  CHECK(other->open_device(other->device) == nullptr);
  std::printf("%s\n", other->control->last_error());
  check_one_rnic();
  return failures;
}

int renamed(const char* first_path, const char* second_path) {
  const verbena::soft::SoftRnic* first = rnic_of(load(first_path));
  ibv_context* context = first->open_device(first->device);
  CHECK(context != nullptr);
  const verbena::soft::SoftRnic* second = rnic_of(load(second_path));
  CHECK(second->device != first->device);
  CHECK(second->open_device(second->device) == nullptr);
  std::printf("%s\n", second->control->last_error());
  check_one_rnic();
  CHECK(first->close_device(context) == 0);
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view way = argc > 1 ? argv[1] : "";
  if (way == "open") return open();
  if (way == "list") return list();
  if (way == "plain") return plain();
  if (way == "modules" && argc == 4) return modules(argv[2], argv[3]);
  if (way == "copy" && argc == 3) return copy([&] { return load(argv[2]); });
  if (way == "namespace" && argc == 3) {
    return copy([&] { return loaded(dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW)); });
  }
  if (way == "renamed" && argc == 4) return renamed(argv[2], argv[3]);
  std::printf("see the source for how to call this program\n");
  return 2;
}
