/* SPDX-License-Identifier: Apache-2.0
 *
 * What somebody who installed libkvd would write first.
 */
#include <kvd/kvd.h>
#include <stdio.h>

int main(void) {
    struct kvd_connect_options options = {
        sizeof options, "/nonexistent/kvd.sock", KVD_ROLE_OBSERVER, "consumer", 0, 200
    };
    struct kvd_error error;
    kvd_client *client = NULL;
    enum kvd_status status = kvd_connect(&options, &client, &error);
    printf("%s %s\n", kvd_version(), kvd_status_name(status));
    return status == KVD_UNAVAILABLE ? 0 : 1;
}
