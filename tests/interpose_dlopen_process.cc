// Takes libibverbs' functions with dlopen() and dlvsym() or dlsym(), as collective communication
// libraries and bindings do, and checks that soft0 is among the devices, opens and makes objects.
// Other uses of these must work as ever.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

template <typename Function>
Function* take(void* library, const char* name, const char* version) {
  void* found = dlvsym(library, name, version);
  if (found == nullptr) std::printf("no %s of version %s: %s\n", name, version, dlerror());
  return reinterpret_cast<Function*>(found);
}

// The installed libibverbs, as a file.
std::string installed_path() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path != std::string::npos && line.find("/libibverbs.so.") != std::string::npos)
      return line.substr(path);
  }
  return "";
}

int failures = 0;

void check(bool holds, const char* what) {
  if (!holds) {
    std::printf("FAILED: %s\n", what);
    ++failures;
  }
}

// A package's own copy, under the names that such copies have.
void check_copies(void* get_list) {
  char folder[] = "/tmp/verbena-copies-XXXXXX";
  check(mkdtemp(folder) != nullptr, "a folder for copies");
  for (const char* name : {"libibverbs.so", "libibverbs.so.1.14.44.0",
                           "libibverbs-1de1263b.so.1.14.48.0", "libibverbs-1de1263b.so.1"}) {
    const std::filesystem::path copy = std::filesystem::path(folder) / name;
    std::filesystem::copy_file(installed_path(), copy);
    void* library = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
    check(library != nullptr && dlsym(library, "ibv_get_device_list") == get_list, name);
  }
  // Others of similar names are themselves.
  for (const char* name : {"libibverbs-other.so.1", "libibverbs_more.so", "libibverbs.so.1.old"}) {
    const std::filesystem::path copy = std::filesystem::path(folder) / name;
    std::filesystem::copy_file(installed_path(), copy);
    void* library = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
    check(library != nullptr && dlsym(library, "ibv_get_device_list") != get_list, name);
  }
  std::filesystem::remove_all(folder);
}

// librdmacm's functions call rpoll() of Verbena, which has to find librdmacm's, wherever that is.
void check_sockets() {
  void* library = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;  // not installed
  auto* make = take<int(int, int, int)>(library, "rsocket", "RDMACM_1.0");
  auto* select =
      take<int(int, fd_set*, fd_set*, fd_set*, timeval*)>(library, "rselect", "RDMACM_1.0");
  auto* bind = take<int(int, const sockaddr*, socklen_t)>(library, "rbind", "RDMACM_1.0");
  auto* listen = take<int(int, int)>(library, "rlisten", "RDMACM_1.0");
  const int made = make(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  check(made >= 0 && bind(made, reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0 &&
            listen(made, 1) == 0,
        "a socket that listens");
  fd_set readable;
  for (int round = 0; round < 3; ++round) {
    FD_ZERO(&readable);
    FD_SET(made, &readable);
    timeval timeout{.tv_sec = 0, .tv_usec = 1000};
    check(select(made + 1, &readable, nullptr, nullptr, &timeout) == 0, "rselect");
  }
}

}  // namespace

int main() {
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  check(library != nullptr, "dlopen");
  auto* get_list = take<ibv_device**(int*)>(library, "ibv_get_device_list", "IBVERBS_1.1");
  auto* free_list = take<void(ibv_device**)>(library, "ibv_free_device_list", "IBVERBS_1.1");
  auto* get_name = take<const char*(ibv_device*)>(library, "ibv_get_device_name", "IBVERBS_1.1");
  auto* open = take<ibv_context*(ibv_device*)>(library, "ibv_open_device", "IBVERBS_1.1");
  auto* close = take<int(ibv_context*)>(library, "ibv_close_device", "IBVERBS_1.1");
  auto* make_channel =
      take<ibv_comp_channel*(ibv_context*)>(library, "ibv_create_comp_channel", "IBVERBS_1.0");
  auto* destroy_channel =
      take<int(ibv_comp_channel*)>(library, "ibv_destroy_comp_channel", "IBVERBS_1.0");
  // Only libibverbs has this one.
  auto* status_text = take<const char*(ibv_wc_status)>(library, "ibv_wc_status_str", "IBVERBS_1.1");

  int count = 0;
  ibv_device** list = get_list(&count);
  check(list != nullptr && count >= 1, "a device is listed");
  ibv_device* soft = nullptr;
  for (int i = 0; i < count; ++i) {
    if (std::strcmp(get_name(list[i]), "soft0") == 0) soft = list[i];
  }
  check(soft != nullptr, "soft0 is listed");
  check(list[count] == nullptr, "the list ends with null");
  ibv_context* context = open(soft);
  check(context != nullptr, "soft0 opens");
  free_list(list);
  ibv_comp_channel* channel = make_channel(context);
  check(channel != nullptr && channel->context == context, "soft0 makes a completion channel");
  check(destroy_channel(channel) == 0, "the channel is destroyed");
  check(close(context) == 0, "soft0 closes");
  check(std::strcmp(status_text(IBV_WC_SUCCESS), "success") == 0, "ibv_wc_status_str");

  // Without a version, as generated bindings do.
  auto* plain_list =
      reinterpret_cast<ibv_device** (*)(int*)>(dlsym(library, "ibv_get_device_list"));
  check(plain_list == get_list, "dlsym finds the same function");
  check(dlsym(library, "ibv_wc_status_str") != nullptr, "dlsym finds libibverbs' own functions");
  check_copies(reinterpret_cast<void*>(get_list));
  check_sockets();
  void* again = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  check(again == library, "a second dlopen gives the same handle");
  check(dlopen("libno_such_library.so.1", RTLD_NOW) == nullptr, "an unknown library");
  const char* reason = dlerror();
  check(reason != nullptr && std::strstr(reason, "libno_such_library") != nullptr,
        "dlerror tells of the unknown library");
  void* program = dlopen(nullptr, RTLD_NOW);
  check(program != nullptr && dlsym(program, "printf") != nullptr, "the program itself");

  check(dlvsym(library, "ibv_no_such_function", "IBVERBS_1.1") == nullptr, "an unknown function");
  check(dlerror() != nullptr, "dlerror tells of the unknown function");
  check(dlvsym(library, "ibv_open_device", "IBVERBS_9.9") == nullptr, "an unknown version");
  check(dlvsym(RTLD_NEXT, "ibv_open_device", "IBVERBS_1.1") != nullptr, "RTLD_NEXT");
#if defined(__x86_64__)
  check(dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.14") != nullptr, "a function of the C library");
#endif
  return failures == 0 ? 0 : 1;
}
