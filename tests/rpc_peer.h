// A process of the request/response tests that can be killed at any moment.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/rpc_support.h"

extern char** environ;

namespace verbena::rpc_test {

// Runs `program PORT` with the secret in its environment. Killed, if it still runs, and waited for
// when destroyed.
class PeerProcess {
 public:
  PeerProcess(const char* name, uint16_t port, const JobSecret& secret) {
    const std::string program = std::string(VERBENA_TEST_PROCESSES "/") + name;
    const std::string port_text = std::to_string(port);
    const std::string secret_text = std::string(kSecretVariable) + "=" + secret.text();
    std::vector<char*> environment;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      environment.push_back(*variable);
    }
    environment.push_back(const_cast<char*>(secret_text.c_str()));
    environment.push_back(nullptr);
    char* arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>(port_text.c_str()),
                         nullptr};
    const int error =
        posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environment.data());
    EXPECT_EQ(error, 0) << program << ": " << std::strerror(error);
    if (error != 0) pid_ = -1;
  }
  ~PeerProcess() {
    kill_now();
    wait_exit_code();
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void kill_now() {
    if (pid_ > 0) kill(pid_, SIGKILL);
  }
  // -1 for one that was killed.
  int wait_exit_code() {
    if (pid_ <= 0) return exit_code_;
    int state = 0;
    waitpid(pid_, &state, 0);
    pid_ = -1;
    exit_code_ = WIFEXITED(state) ? WEXITSTATUS(state) : -1;
    return exit_code_;
  }

 private:
  pid_t pid_ = -1;
  int exit_code_ = -1;
};

}  // namespace verbena::rpc_test
