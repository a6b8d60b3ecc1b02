// Tests with several processes: a test program starts itself again in the role of a child.
//
//   VERBENA_TEST_CHILD(echo) {                    // runs in the child; `link` leads to the test
//     link.put(link.get<int>());
//     return 0;                                   // the exit code
//   }
//   TEST(EchoTest, Answers) {
//     Child child("echo");
//     child.link().put(7);
//     EXPECT_EQ(child.link().get<int>(), 7);
//     EXPECT_EQ(child.wait(), 0);
//   }
//
// main() is run_main() (main.cc).
// Each test program has a registry directory (VERBENA_RUNTIME_DIR) of its own, which its children
// inherit.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"

namespace verbena::soft_test {

// One end of a stream between a test and its child. Every call ends the process with a message
// where the other side is gone or silent for longer than any test takes.
class Link {
 public:
  explicit Link(int socket) : socket_(socket) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link();

  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(&value, sizeof(value));
  }
  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    get_bytes(&value, sizeof(value));
    return value;
  }
  void put_bytes(const void* bytes, size_t size_bytes);
  void get_bytes(void* bytes, size_t size_bytes);
  // Whether something can be read: bytes, or the end of the stream.
  bool readable() const;
  int descriptor() const { return socket_; }

 private:
  int socket_;
};

// A child process in the role `name`.
class Child : public test::ChildProcess {
 public:
  explicit Child(const std::string& role, const std::vector<std::string>& arguments = {});
  Child(Child&&) noexcept = default;
  Child& operator=(Child&&) = delete;
  // Before its link closes, which it would complain of.
  ~Child() { kill(); }

  Link& link() { return *link_; }
  // Kills and reaps it.
  void kill();

 private:
  // The test's end of the link, and the child's.
  using Ends = std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>>;
  static Ends make_ends();
  Child(const std::string& role, const std::vector<std::string>& arguments, Ends ends);

  std::unique_ptr<Link> link_;
};

using ChildMain = int (*)(Link& link, const std::vector<std::string>& arguments);
struct ChildRole {
  ChildRole(const char* name, ChildMain body);
};

#define VERBENA_TEST_CHILD(role)                                                       \
  static int child_##role(::verbena::soft_test::Link& link,                            \
                          const std::vector<std::string>& arguments);                  \
  static const ::verbena::soft_test::ChildRole child_role_##role(#role, child_##role); \
  static int child_##role([[maybe_unused]] ::verbena::soft_test::Link& link,           \
                          [[maybe_unused]] const std::vector<std::string>& arguments)

// What main() of a test program does: the tests, or the role that the arguments name.
int run_main(int argc, char** argv);

// Descriptors that this process has open.
size_t open_descriptors();

// How often to repeat what looks for rare interleavings: `usual`, many times that with
// VERBENA_SOAK=1, less in a sanitizer build.
size_t iterations(size_t usual);

}  // namespace verbena::soft_test
