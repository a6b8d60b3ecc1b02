#include "tests/fuzz/fuzz_target.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "src/base/file_descriptor.h"
#include "tests/fuzz/targets.h"

namespace verbena::fuzz {

void require(bool condition, std::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

void require_readable(const Status& status) {
  if (status.ok()) return;
  const std::string& text = status.message();
  require(!text.empty(), "an error says why");
  const bool printable =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
  require(printable, fmt::format("an error is one printable line: {}", text));
}

Bytes as_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<Bytes> repository_files(const std::string& folder, const std::string& suffix) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(VERBENA_SOURCE_DIR) / folder)) {
    if (entry.path().string().ends_with(suffix)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> files;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    files.push_back(as_bytes(std::string(std::istreambuf_iterator<char>(file), {})));
  }
  return files;
}

void with_file(std::span<const std::byte> content,
               const std::function<void(const std::string& path)>& use) {
  const FileDescriptor file(memfd_create("fuzz", MFD_CLOEXEC));
  const ssize_t written = write(file.get(), content.data(), content.size());
  require(file.valid() && written == static_cast<ssize_t>(content.size()), "there is memory");
  use(fmt::format("/proc/self/fd/{}", file.get()));
}

std::span<const FuzzTarget> fuzz_targets() {
  static const std::vector<FuzzTarget> all = [] {
    std::vector<FuzzTarget> targets = frame_targets();
    for (const auto& others :
         {text_targets(), application_targets(), recording_targets(), connection_targets()}) {
      targets.insert(targets.end(), others.begin(), others.end());
    }
    return targets;
  }();
  return all;
}

}  // namespace verbena::fuzz
