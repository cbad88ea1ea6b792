# SPDX-License-Identifier: Apache-2.0
"""The release of this client, which is that of the kvd it was built beside."""

VERSION = "0.1.0"
