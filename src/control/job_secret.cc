#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"
#include "verbena/connection.h"

namespace verbena {

namespace {

void wipe(std::string& text) {
  OPENSSL_cleanse(text.data(), text.size());
  text.clear();
}

Status cannot(const char* what, const std::string& path) {
  const int error = errno;
  StatusCode code = StatusCode::kUnavailable;
  if (error == ENOENT || error == ENOTDIR) code = StatusCode::kNotFound;
  if (error == EACCES || error == EPERM) code = StatusCode::kPermissionDenied;
  return Status(code,
                fmt::format("cannot {} the secret file {}: {}", what, path, std::strerror(error)));
}

}  // namespace

Result<JobSecret> JobSecret::from_string(std::string_view text) {
  if (text.size() < kMinBytes || text.size() > kMaxBytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the job secret has {} bytes, it needs {} to {}; make one with "
                              "`openssl rand -hex 32`",
                              text.size(), kMinBytes, kMaxBytes));
  }
  return JobSecret(std::string(text));
}

Result<JobSecret> JobSecret::from_file(const std::string& path) {
  // Non-blocking: opening a pipe by mistake must not hang.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return cannot("open", path);
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return cannot("stat", path);
  if (!S_ISREG(info.st_mode)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the secret file {} is not a regular file", path));
  }
  // Root may take over what a user gave it.
  if (info.st_uid != geteuid() && geteuid() != 0) {
    return Status(
        StatusCode::kPermissionDenied,
        fmt::format("the secret file {} belongs to user {}, not to user {} who runs this; "
                    "make one of your own",
                    path, info.st_uid, geteuid()));
  }
  if ((info.st_mode & 077) != 0) {
    return Status(StatusCode::kPermissionDenied,
                  fmt::format("the secret file {0} has mode {1:04o}, others can use it; run `chmod "
                              "600 {0}` and make a new secret if they may have read it",
                              path, info.st_mode & 07777));
  }
  // One byte more than the longest secret with its newline: longer files are noticed, not read.
  std::string text(kMaxBytes + 3, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      Status status = cannot("read", path);
      wipe(text);
      return status;
    }
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  std::string_view content(text.data(), size);
  if (content.ends_with('\n')) content.remove_suffix(1);
  if (content.ends_with('\r')) content.remove_suffix(1);
  Result<JobSecret> secret = from_string(content);
  wipe(text);
  if (!secret.ok()) {
    return Status(secret.status().code(),
                  fmt::format("in the file {}: {}", path, secret.status().message()));
  }
  return secret;
}

JobSecret JobSecret::random() {
  std::array<uint8_t, 32> bytes;
  secure_random(bytes.data(), bytes.size());
  std::string text;
  text.reserve(2 * bytes.size());
  for (uint8_t byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return JobSecret(std::move(text));
}

JobSecret::JobSecret(const JobSecret&) = default;
// Copied and wiped: a moved short string would leave its characters behind.
JobSecret::JobSecret(
    JobSecret&& other) noexcept  // NOLINTNEXTLINE(performance-move-constructor-init)
    : text_(other.text_) {
  wipe(other.text_);
}

JobSecret& JobSecret::operator=(const JobSecret& other) {
  if (this != &other) {
    wipe(text_);
    text_ = other.text_;
  }
  return *this;
}

JobSecret& JobSecret::operator=(JobSecret&& other) noexcept {
  if (this != &other) {
    wipe(text_);
    text_ = other.text_;
    wipe(other.text_);
  }
  return *this;
}

JobSecret::~JobSecret() { wipe(text_); }

Status JobSecret::write_file(const std::string& path) const {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return cannot("make", path);
  // from_file() takes "\r\n" for one newline. In two parts: a copy would have to be wiped.
  const std::string_view newline = text_.ends_with('\r') ? "\r\n" : "\n";
  for (std::string_view rest : {std::string_view(text_), newline}) {
    while (!rest.empty()) {
      const ssize_t put = write(file.get(), rest.data(), rest.size());
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) {
        Status status = cannot("write", path);
        unlink(path.c_str());
        return status;
      }
      rest.remove_prefix(static_cast<size_t>(put));
    }
  }
  return Status::ok_status();
}

}  // namespace verbena
