// Finds soft0 below /sys by every call of the C library that takes a path, and compares what is
// there with what verbs say. Other paths must stay what they are.
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "tests/support/process_checks.h"

namespace {

using verbena::test::failures;

namespace fs = std::filesystem;

constexpr const char* kClass = "/sys/class/infiniband";
constexpr const char* kDevice = "/sys/class/infiniband/soft0";
const std::string kPort = std::string(kDevice) + "/ports/1/";

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::string read_descriptor(int fd) {
  char text[256];
  const ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof(text));
  if (fd >= 0) close(fd);
  return length < 0 ? "" : std::string(text, static_cast<size_t>(length));
}

std::string guid_text(__be64 guid) {
  const uint64_t value = be64toh(guid);
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%04x:%04x:%04x", static_cast<unsigned>(value >> 48),
                static_cast<unsigned>(value >> 32 & 0xffff),
                static_cast<unsigned>(value >> 16 & 0xffff), static_cast<unsigned>(value & 0xffff));
  return text;
}

void check_contents(ibv_context* context) {
  ibv_device_attr attributes{};
  ibv_port_attr port{};
  ibv_gid gid{};
  __be16 key = 0;
  CHECK(ibv_query_device(context, &attributes) == 0);
  CHECK(ibv_query_port(context, 1, &port) == 0);
  CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
  CHECK(ibv_query_pkey(context, 1, 0, &key) == 0);
  const std::string device = std::string(kDevice) + "/";
  CHECK(first_line(device + "node_guid") == guid_text(attributes.node_guid));
  CHECK(first_line(device + "node_guid") == guid_text(ibv_get_device_guid(context->device)));
  CHECK(first_line(device + "sys_image_guid") == guid_text(attributes.sys_image_guid));
  CHECK(first_line(device + "fw_ver") == attributes.fw_ver);
  CHECK(std::atoi(first_line(device + "node_type").c_str()) == context->device->node_type);
  CHECK(std::atoi(first_line(kPort + "state").c_str()) == static_cast<int>(port.state));
  CHECK(std::atoi(first_line(kPort + "phys_state").c_str()) == port.phys_state);
  CHECK(std::stoi(first_line(kPort + "lid"), nullptr, 16) == port.lid);
  CHECK(std::stoi(first_line(kPort + "sm_lid"), nullptr, 16) == port.sm_lid);
  CHECK(first_line(kPort + "gids/0") ==
        guid_text(gid.global.subnet_prefix) + ":" + guid_text(gid.global.interface_id));
  CHECK(std::stoi(first_line(kPort + "pkeys/0"), nullptr, 16) == be16toh(key));
  CHECK(first_line(kPort + "link_layer") ==
        (port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand"));
  CHECK(first_line(std::string(context->device->dev_path) + "/ibdev") == "soft0");
  CHECK(std::string(context->device->ibdev_path) == kDevice);
}

void check_opening() {
  const std::string lid = first_line(kPort + "lid") + "\n";
  CHECK(lid.size() > 1);
  CHECK(read_descriptor(open((kPort + "lid").c_str(), O_RDONLY)) == lid);
  CHECK(read_descriptor(open64((kPort + "lid").c_str(), O_RDONLY)) == lid);
  CHECK(read_descriptor(openat(AT_FDCWD, (kPort + "lid").c_str(), O_RDONLY)) == lid);
  CHECK(read_descriptor(open("/sys//class/infiniband///soft0/ports/1/lid", O_RDONLY)) == lid);
  const int folder = open(kClass, O_RDONLY | O_DIRECTORY);
  CHECK(folder >= 0);
  CHECK(read_descriptor(openat(folder, "soft0/ports/1/lid", O_RDONLY)) == lid);
  close(folder);
  FILE* file = fopen((kPort + "lid").c_str(), "r");
  CHECK(file != nullptr);
  if (file != nullptr) std::fclose(file);
  errno = 0;
  CHECK(open((kPort + "no_such_file").c_str(), O_RDONLY) < 0 && errno == ENOENT);
}

void check_writing() {
  const std::string lid = kPort + "lid";
  const std::string made = std::string(kDevice) + "/made";
  const std::string before = first_line(lid);
  for (const int flags : {O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC, O_WRONLY | O_APPEND}) {
    errno = 0;
    CHECK(open(lid.c_str(), flags) < 0 && errno == EACCES);
    errno = 0;
    CHECK(openat(AT_FDCWD, lid.c_str(), flags) < 0 && errno == EACCES);
  }
  errno = 0;
  CHECK(open(made.c_str(), O_RDONLY | O_CREAT, 0600) < 0 && errno == EACCES);
  for (const char* mode : {"w", "a", "r+", "rb+"}) {
    errno = 0;
    CHECK(fopen(lid.c_str(), mode) == nullptr && errno == EACCES);
  }
  CHECK(access(made.c_str(), F_OK) != 0);
  CHECK(first_line(lid) == before);
  struct stat status {};
  CHECK(stat(lid.c_str(), &status) == 0 && (status.st_mode & 0777) == 0444);
  CHECK(stat(kDevice, &status) == 0 && (status.st_mode & 0777) == 0755);
}

int is_soft(const dirent* entry) { return std::strcmp(entry->d_name, "soft0") == 0 ? 1 : 0; }

void check_listing() {
  DIR* folder = opendir(kClass);
  CHECK(folder != nullptr);
  std::set<std::string> names;
  while (const dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
    names.insert(entry->d_name);
  }
  if (folder != nullptr) closedir(folder);
  CHECK(names.count("soft0") == 1);
  dirent** found = nullptr;
  CHECK(scandir(kClass, &found, is_soft, alphasort) == 1);
  if (found != nullptr) std::free(found[0]);
  std::free(static_cast<void*>(found));
  bool listed = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(kClass)) {
    listed = listed || entry.path() == kDevice;
  }
  CHECK(listed);
  glob_t matches{};
  CHECK(glob("/sys/class/infiniband/*/ports/*/state", 0, nullptr, &matches) == 0);
  bool matched = false;
  for (size_t i = 0; i < matches.gl_pathc; ++i) {
    matched = matched || matches.gl_pathv[i] == kPort + "state";
  }
  CHECK(matched);
  // Behind what was found before.
  const size_t before = matches.gl_pathc;
  CHECK(glob("/sys/class/infiniband_verbs/uverbs-soft*", GLOB_APPEND, nullptr, &matches) == 0);
  CHECK(matches.gl_pathc == before + 1 &&
        std::string(matches.gl_pathv[before]) == "/sys/class/infiniband_verbs/uverbs-soft0");
  globfree(&matches);
}

void check_links() {
  char target[PATH_MAX] = {};
  CHECK(readlink(kDevice, target, sizeof(target) - 1) > 0);
  CHECK(std::string(target) == "../../devices/virtual/verbena/soft0/infiniband/soft0");
  char resolved[PATH_MAX];
  CHECK(realpath(kDevice, resolved) == resolved);
  CHECK(std::string(resolved) == "/sys/devices/virtual/verbena/soft0/infiniband/soft0");
  CHECK(realpath("/sys/class/infiniband/soft0/../..", resolved) != nullptr);
  CHECK(std::string(resolved) == "/sys/devices/virtual/verbena/soft0");
  CHECK(first_line(std::string(resolved) + "/numa_node") == "-1");
  char* allocated = realpath("/sys/class/infiniband/soft0/device", nullptr);
  CHECK(allocated != nullptr && std::string(allocated) == "/sys/devices/virtual/verbena/soft0");
  std::free(allocated);
  CHECK(fs::canonical(kDevice) == "/sys/devices/virtual/verbena/soft0/infiniband/soft0");
}

void check_status() {
  struct stat status {};
  CHECK(stat(kDevice, &status) == 0 && S_ISDIR(status.st_mode));
  CHECK(lstat(kDevice, &status) == 0 && S_ISLNK(status.st_mode));
  CHECK(fstatat(AT_FDCWD, kDevice, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode));
  struct statx more {};
  CHECK(statx(AT_FDCWD, kDevice, 0, STATX_TYPE, &more) == 0 && S_ISDIR(more.stx_mode));
  CHECK(access((kPort + "gids/0").c_str(), R_OK) == 0);
  CHECK(faccessat(AT_FDCWD, (kPort + "gids/0").c_str(), R_OK, 0) == 0);
  CHECK(euidaccess((kPort + "gids/0").c_str(), R_OK) == 0);
  CHECK(access("/sys/class/infiniband/no_such_device", F_OK) != 0 && errno == ENOENT);
}

void check_working_directory() {
  char before[PATH_MAX];
  char now[PATH_MAX];
  CHECK(getcwd(before, sizeof(before)) != nullptr);
  CHECK(chdir(kDevice) == 0);
  CHECK(getcwd(now, sizeof(now)) != nullptr &&
        std::string(now) == "/sys/devices/virtual/verbena/soft0/infiniband/soft0");
  CHECK(!first_line("ports/1/state").empty());
  CHECK(chdir(before) == 0);
}

bool is_refused(int result) { return result < 0 && errno == EFAULT; }

void check_bad_address(const char* path) {
  struct stat status {};
  CHECK(is_refused(open(path, O_RDONLY)));
  CHECK(is_refused(openat(AT_FDCWD, path, O_RDONLY)));
  CHECK(is_refused(access(path, R_OK)));
  CHECK(is_refused(stat(path, &status)));
  CHECK(is_refused(lstat(path, &status)));
  CHECK(is_refused(chdir(path)));
}

// The kernel refuses what is no address of a path; to look at it before would end the program.
void check_bad_addresses() {
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* pages = static_cast<char*>(
      mmap(nullptr, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  char* const forbidden = pages + page_bytes;
  CHECK(mprotect(forbidden, page_bytes, PROT_NONE) == 0);
  check_bad_address(reinterpret_cast<const char*>(1));
  check_bad_address(reinterpret_cast<const char*>(-1));
  check_bad_address(forbidden);
  check_bad_address(forbidden + 9);
  for (const std::string beginning : {"/", "/sy", "/sys/class/infiniband/soft0", "/dev/infin"}) {
    char* const path = forbidden - beginning.size();
    beginning.copy(path, beginning.size());
    check_bad_address(path);
  }
  CHECK(munmap(pages, 2 * page_bytes) == 0);
}

// As they are without soft0.
void check_other_paths() {
  struct stat status {};
  CHECK(stat("/sys/class/net/lo", &status) == 0);
  char resolved[PATH_MAX];
  CHECK(realpath("/sys/class/net/lo", resolved) != nullptr &&
        std::string(resolved) == "/sys/devices/virtual/net/lo");
  CHECK(access("/sys/class/infiniband_other", F_OK) != 0);
  CHECK(access("/sysfs", F_OK) != 0);
  const std::string path = "/tmp/verbena-sysfs-" + std::to_string(getpid());
  const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0640);
  CHECK(fd >= 0 && fstat(fd, &status) == 0 && (status.st_mode & 0777) == 0640);
  close(fd);
  CHECK(unlink(path.c_str()) == 0);
}

}  // namespace

int main() {
  umask(0);
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  CHECK(list != nullptr && count >= 1);
  ibv_context* context = nullptr;
  int soft_count = 0;
  for (int i = 0; list != nullptr && i < count; ++i) {
    if (std::strcmp(ibv_get_device_name(list[i]), "soft0") != 0) continue;
    ++soft_count;
    context = ibv_open_device(list[i]);
  }
  CHECK(soft_count == 1);  // the installed library must not find it a second time
  CHECK(context != nullptr);
  if (context != nullptr) check_contents(context);
  check_opening();
  check_writing();
  check_listing();
  check_links();
  check_status();
  check_working_directory();
  check_other_paths();
  check_bad_addresses();
  if (context != nullptr) ibv_close_device(context);
  if (list != nullptr) ibv_free_device_list(list);
  return failures == 0 ? 0 : 1;
}
